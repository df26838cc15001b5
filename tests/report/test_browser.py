"""The pages in a real browser: they load nothing, sort, filter, change theme, fit a phone and print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.report import write_index, write_report

pytestmark = pytest.mark.browser


@pytest.fixture
def report(make_run) -> Path:
    return write_report(make_run())


def column(page, name: str) -> list[str]:
    """The visible cells below a header of the table of trials, top to bottom."""
    return page.evaluate(
        """(name) => {
          const table = document.querySelector("#trial-table");
          const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.innerText.trim() === name);
          const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
          return rows.map((row) => row.cells[at].innerText.trim());
        }""",
        name,
    )


def header(page, name: str):
    return page.locator("#trial-table th", has_text=re.compile(rf"^{name}$"))


def test_the_page_loads_without_a_complaint_and_shows_its_figures(visit, report):
    with visit(report, color_scheme="light") as page:
        assert page.title() == "Toy regression: quick study"
        images = page.locator("figure img:visible")
        assert images.count() == 2
        assert all(image.evaluate("image => image.naturalWidth") > 100 for image in images.all())


def test_the_script_in_an_error_is_text(visit, report, hostile):
    with visit(report) as page:
        assert page.title() != "broken"
        assert page.locator("script").count() == 1
        details = page.locator("details", has_text="document.title")
        assert hostile in details.locator("summary").inner_text()
        assert not details.locator("pre").is_visible()
        details.locator("summary").click()
        assert hostile in details.locator("pre").inner_text()


def test_a_script_that_got_into_the_page_would_not_run(visit, report):
    text = report.read_text()
    report.write_text(text.replace("</main>", "<script>document.title='broken'</script></main>"))
    with pytest.raises(AssertionError, match="Content Security Policy"), visit(report) as page:
        assert page.title() != "broken"


def test_numbers_sort_as_numbers_in_both_directions(visit, report):
    with visit(report) as page:
        header(page, "angle").get_by_role("button").click()
        assert header(page, "angle").get_attribute("aria-sort") == "ascending"
        values = column(page, "angle")
        numbers = [float(value) for value in values if value]
        assert numbers == sorted(numbers)
        assert numbers[-1] == 529
        # What was not measured comes last in either direction.
        assert values[-4:] == [""] * 4
        header(page, "angle").get_by_role("button").click()
        assert header(page, "angle").get_attribute("aria-sort") == "descending"
        values = column(page, "angle")
        assert float(values[0]) == 529
        assert values[-4:] == [""] * 4
        header(page, "error").get_by_role("button").click()
        assert header(page, "angle").get_attribute("aria-sort") is None
        assert column(page, "error")[20] == "inf"


def test_sorting_works_by_keyboard_and_keeps_the_order_of_equals(visit, report):
    with visit(report) as page:
        header(page, "arm").get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert column(page, "arm") == ["ablation"] * 8 + ["baseline"] * 8 + ["method"] * 8
        seeds = [int(seed) for seed in column(page, "seed")]
        assert seeds == [0, 1, 2, 3, 0, 1, 2, 3] * 3
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        assert column(page, "n") == ["100"] * 12 + ["200"] * 12


def test_text_arm_and_status_filter_together(visit, report):
    with visit(report) as page:
        shown = page.locator(".filters output")
        assert shown.inner_text() == "24 of 24 shown"
        page.get_by_label("Arm").select_option(label="method")
        assert set(column(page, "arm")) == {"method"}
        assert shown.inner_text() == "8 of 24 shown"
        page.get_by_label("Status").select_option(label="error")
        assert shown.inner_text() == "1 of 24 shown"
        page.get_by_label("Arm").select_option(label="all")
        assert shown.inner_text() == "2 of 24 shown"
        page.get_by_label("Contains").fill("SINGULAR matrix")
        assert shown.inner_text() == "1 of 24 shown"
        assert column(page, "arm") == ["baseline"]
        header(page, "seed").get_by_role("button").click()
        assert shown.inner_text() == "1 of 24 shown"
        assert column(page, "arm") == ["baseline"]
        page.get_by_label("Contains").press("Enter")
        assert page.url == report.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_reader(visit, report, scheme):
    other = "dark" if scheme == "light" else "light"

    def seen(page):
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        images = page.locator("figure img:visible").evaluate_all(
            "images => images.map((image) => image.className)"
        )
        return {"rgb(253, 252, 249)": "light", "rgb(22, 24, 27)": "dark"}[background], set(images)

    with visit(report, color_scheme=scheme) as page:
        assert seen(page) == (scheme, {scheme})
        page.get_by_role("radio", name=other, exact=False).check()
        assert seen(page) == (other, {other})
        page.reload()
        assert seen(page) == (other, {other})
        assert page.get_by_role("radio", name=other, exact=False).is_checked()
        page.get_by_role("radio", name="Auto").check()
        assert seen(page) == (scheme, {scheme})


def test_text_has_enough_contrast_in_both_themes(visit, report, make_run, make_verdict):
    outcomes = ("holds", "fails", "inconclusive", "not testable")
    path = write_report(make_run("all", verdicts=[make_verdict(f"C{i}", o) for i, o in enumerate(outcomes)]))
    script = """() => {
      const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const rgb = (colour, under) => {
        context.fillStyle = under; context.fillRect(0, 0, 1, 1);
        context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
      };
      const luminance = (colour) => colour
        .map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const paper = getComputedStyle(document.body).backgroundColor;
      return [...document.querySelectorAll("main *, header *, footer *")]
        .filter((e) => e.checkVisibility())
        .filter((e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
        .map((e) => {
          let box = e;
          while (box && getComputedStyle(box).backgroundColor === "rgba(0, 0, 0, 0)") box = box.parentElement;
          const under = rgb(box ? getComputedStyle(box).backgroundColor : paper, paper);
          const over = rgb(getComputedStyle(e).color, paper);
          const [x, y] = [luminance(over), luminance(under)].sort((a, b) => b - a);
          return [(x + 0.05) / (y + 0.05), e.outerHTML.slice(0, 80)];
        }).filter(([contrast]) => contrast < 4.5);
    }"""
    for scheme in ("light", "dark"):
        with visit(path, color_scheme=scheme) as page:
            assert page.evaluate(script) == []


def test_a_phone_needs_no_sideways_scrolling(visit, make_run, make_verdict):
    long = "a_very_long_name_without_any_place_to_break_" * 4
    path = make_run(
        verdicts=[make_verdict("C1", paper=long, unit=long), make_verdict(long[:60], "fails", reason=long)],
        title=f"Toy {long}",
        command=f"assay study {long}",
    )
    for page_path in (write_report(path), write_index(path.parent)):
        with visit(page_path, width=390, is_mobile=True) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert page.evaluate("visualViewport.scale") == 1


def test_a_wide_table_scrolls_in_its_container(visit, report):
    with visit(report, width=390) as page:
        box = page.locator(".trials")
        assert box.evaluate("box => box.scrollWidth > box.clientWidth")
        # A keyboard can scroll it, because it takes the focus.
        assert box.get_attribute("tabindex") == "0"


def test_print_is_light_and_leaves_out_controls_and_trials(visit, report):
    with visit(report, color_scheme="dark") as page:
        page.get_by_role("radio", name="Dark").check()
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator("figure img:visible").evaluate_all(
            "images => images.map((i) => i.className)"
        ) == [
            "light",
            "light",
        ]
        assert not page.locator(".filters").is_visible()
        assert not page.locator("#trial-table").is_visible()
        assert "The table of 24 trials is left out in print" in page.locator("main").inner_text()


def test_without_javascript_everything_can_be_read(visit, report):
    with visit(report, javascript=False, color_scheme="dark") as page:
        assert page.locator("#trial-table tbody tr:visible").count() == 24
        assert not page.locator(".filters").is_visible()
        assert not page.locator(".theme").is_visible()
        assert page.locator("figure img.dark:visible").count() == 2


def test_the_scoreboard_leads_to_the_claim(visit, report):
    index = write_index(report.parent.parent)
    # Following the link leaves this page for the run's, which is a request of its own.
    with pytest.raises(AssertionError, match=r"report\.html"), visit(index) as page:
        page.get_by_role("link", name=re.compile("C2")).click()
        page.wait_for_url("**/report.html#claim-C2")
        assert "Claim C2" in page.locator("tr:target").inner_text()
