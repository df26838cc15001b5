"""The page in a real browser: nothing runs that should not, the graphs are drawn, the evidence opens."""

from __future__ import annotations

import functools

import pytest

pytestmark = pytest.mark.browser

# Every text whose colour is too close to what lies under it, in HTML and in drawings.
LOW_CONTRAST = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour, under) => {
    context.fillStyle = under; context.fillRect(0, 0, 1, 1);
    context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (colour) => colour
    .map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (over, under) => {
    const [x, y] = [luminance(over), luminance(under)].sort((a, b) => b - a);
    return (x + 0.05) / (y + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const ground = (e) => {
    while (e && getComputedStyle(e).backgroundColor === "rgba(0, 0, 0, 0)") e = e.parentElement;
    return e ? getComputedStyle(e).backgroundColor : paper;
  };
  const all = document.querySelectorAll("main *, header *, footer *");
  const shown = [...all].filter((e) => e.checkVisibility());
  const speaks = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const words = shown
    .filter((e) => !e.closest("svg") && speaks(e))
    .map((e) => [rgb(getComputedStyle(e).color, paper), rgb(ground(e), paper), e])
    .map(([over, under, e]) => [contrast(over, under), e.outerHTML.slice(0, 90)]);
  const drawn = shown.filter((e) => e.tagName === "text").map((e) => {
    const canvas = ground(e.closest("svg"));
    const shape = e.matches(".pill text, text.number") ? e.parentElement.querySelector("rect, circle") : null;
    const under = shape ? getComputedStyle(shape).fill : canvas;
    return [contrast(rgb(getComputedStyle(e).fill, canvas), rgb(under, canvas)), e.outerHTML.slice(0, 90)];
  });
  return [...words, ...drawn].filter(([ratio]) => ratio < 4.5);
}"""


@pytest.fixture
def visit(visit, page, tmp_path):
    """`with visit() as tab`: the page of the run, without moving."""
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    return functools.partial(visit, path, reduced_motion="reduce")


def panel(page):
    return page.locator("#panel")


def test_hostile_text_does_not_run(visit):
    with visit() as page:
        assert page.title() == "How do Kestrel and Harrier hunt? <b>&amp;"
        assert page.locator("h1").inner_text() == page.title()
        assert page.locator("script").count() == 1
        assert page.locator("img").count() == 0
        page.locator("#evidence-4").scroll_into_view_if_needed()
        assert (
            "<script>document.title='broken'</script>" in page.locator("#evidence-4 blockquote").inner_text()
        )
        assert "<script>" in page.locator("#report").inner_text()


def test_both_graphs_are_drawn(visit):
    with visit() as page:
        assert page.locator("#graph a.pill").count() == 10
        assert page.locator("#graph a.pill.core").count() == 2
        assert page.locator("#graph a.link").count() == 8
        assert page.locator("#graph .gap").count() > 0
        assert page.locator("svg.outline .leaf").count() == 8
        assert page.locator("svg.outline .leaf.empty").count() == 1
        boxes = page.locator("#graph a.pill rect").evaluate_all(
            "all => all.map((e) => e.getBoundingClientRect()).map((b) => [b.left, b.top, b.right, b.bottom])"
        )
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        # A label stays inside of its pill, whatever fonts the machine has.
        assert (
            page.locator("#graph a.pill").evaluate_all(
                "all => all.map((e) => ['text', 'rect'].map((name) => e.querySelector(name).getBBox().width))"
                ".filter(([text, pill]) => text > pill).length"
            )
            == 0
        )
        assert page.locator("#knowledge .legend li").count() == 6
        assert page.locator("#outline .legend li").count() == 3


def test_a_citation_opens_its_evidence_and_escape_goes_back(visit):
    with visit() as page:
        mark = page.locator("#report a.cite").first
        mark.click()
        assert panel(page).is_visible()
        assert panel(page).locator("blockquote").all_inner_texts() == [
            "The Kestrel hovers over the Meadow before it strikes."
        ]
        assert "birds.example/kestrel" in panel(page).inner_text()
        # What rests on the same evidence is marked in both graphs.
        assert page.locator("#graph .link.lit").count() == 1
        assert page.locator("svg.outline .leaf.lit").count() == 3
        page.keyboard.press("Escape")
        assert not panel(page).is_visible()
        assert mark.evaluate("mark => mark === document.activeElement")
        assert page.locator(".lit").count() == 0


def test_a_line_of_the_graph_opens_relations_and_evidence(visit):
    with visit() as page:
        page.locator('#graph a.link[data-evidence="2 4"] .hit').dispatch_event("click")
        text = panel(page).inner_text()
        assert "Kestrel – Vole" in text
        assert "eats" in text
        assert "hunts" in text
        assert panel(page).locator("blockquote").count() == 2


def test_an_entity_leads_over_its_neighbour_to_the_evidence_and_back(visit):
    with visit() as page:
        page.locator("#graph a.pill.core", has_text="Kestrel").click()
        assert panel(page).locator("#panel-title").inner_text() == "Kestrel"
        panel(page).get_by_role("link", name="Meadow").click()
        assert panel(page).locator("#panel-title").inner_text() == "Kestrel – Meadow"
        assert panel(page).locator("blockquote").count() == 1
        panel(page).get_by_role("button", name="Back").click()
        assert panel(page).locator("#panel-title").inner_text() == "Kestrel"
        panel(page).get_by_role("button", name="Close").click()
        assert not panel(page).is_visible()


def test_everything_can_be_reached_with_the_keyboard(visit):
    with visit() as page:
        page.locator("#find-entity").focus()
        reached = []
        for _ in range(16):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate(
                    "document.activeElement.dataset.name || document.activeElement.dataset.title || ''"
                )
            )
        assert "Kestrel" in reached
        assert "Heron" in reached
        page.locator("#graph a.pill.core", has_text="Harrier").focus()
        page.keyboard.press("Enter")
        assert panel(page).is_visible()
        assert page.evaluate("document.activeElement.id") == "panel"
        for _ in range(3):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert "Harrier – " in panel(page).locator("#panel-title").inner_text()
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.dataset.name") == "Harrier"
        page.locator("svg.outline a.leaf", has_text="how it hunts").focus()
        page.keyboard.press("Enter")
        assert panel(page).locator("blockquote").count() == 2


def test_finding_zooming_and_gaps(visit):
    with visit() as page:
        whole = page.locator("#graph").get_attribute("viewBox")
        page.locator("#find-entity").fill("harr")
        assert page.locator("#found").inner_text() == "1 found"
        assert page.locator("#graph a.pill.near").count() == 3  # itself, Marsh and Owl
        page.locator("#find-entity").press("Enter")
        assert page.evaluate("document.activeElement.dataset.name") == "Harrier"
        page.locator("#find-entity").fill("")
        page.get_by_role("button", name="Zoom in").click()
        closer = [float(value) for value in page.locator("#graph").get_attribute("viewBox").split()]
        assert closer[2] < float(whole.split()[2])
        page.locator("#graph a.pill").first.focus()
        page.keyboard.press("ArrowRight")
        assert float(page.locator("#graph").get_attribute("viewBox").split()[0]) > closer[0]
        page.get_by_role("button", name="All").click()
        assert [float(v) for v in page.locator("#graph").get_attribute("viewBox").split()] == [
            float(v) for v in whole.split()
        ]
        page.get_by_label("Gaps").uncheck()
        assert not page.locator("#graph .gaps").is_visible()


def test_dragging_moves_the_drawing_and_opens_nothing(visit):
    with visit() as page:
        page.get_by_role("button", name="Zoom in").click()
        pill = page.locator("#graph a.pill.core").first
        pill.scroll_into_view_if_needed()
        box = pill.bounding_box()
        before = page.locator("#graph").get_attribute("viewBox")
        page.mouse.move(box["x"] + 10, box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] - 60, box["y"] + 40, steps=4)
        page.mouse.move(box["x"] + 90, box["y"] + 50, steps=4)
        page.mouse.up()
        assert page.locator("#graph").get_attribute("viewBox") != before
        assert not panel(page).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(visit, scheme):
    with visit(color_scheme=scheme) as page:
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(253, 252, 249)" if scheme == "light" else "rgb(22, 24, 27)"
        )
        page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        page.locator("#report a.cite").first.click()
        assert page.evaluate(LOW_CONTRAST) == []


def test_a_phone_needs_no_sideways_scrolling(visit):
    with visit(width=390, is_mobile=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#report a.cite").first.click()
        box = panel(page).bounding_box()
        assert box["x"] == 0
        assert box["width"] == 390
        assert box["y"] > 200


def test_without_javascript_everything_can_be_read(visit):
    with visit(javascript=False) as page:
        assert not panel(page).is_visible()
        assert not page.locator(".tools").is_visible()
        page.locator("#report a.cite").first.click()
        assert page.locator("#reference-1:target").is_visible()
        assert page.locator("#evidence-1 blockquote").is_visible()
        assert page.locator("#graph a.pill").count() == 10


def test_an_address_opens_what_it_names(visit):
    with visit() as page:
        assert not page.locator("#pair-1-4").is_visible()
        page.goto(f"{page.url}#pair-1-4")
        page.wait_for_function("document.querySelector('#pair-1-4').checkVisibility()")


def test_print_leaves_out_what_only_works_on_a_screen(visit):
    with visit(color_scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator(".tools").is_visible()
        assert page.locator("#graph").is_visible()
