"""Figures are drawn for both themes, the same every time, and a broken one costs only itself."""

import base64
import itertools
import json
import logging
import re

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from assay.report import render_figures
from assay.report.figures import PALETTE, PAPER, read_figures
from assay.study import Panel

# Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB.
DEFICIENCIES = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
    "none": np.eye(3),
}


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first, second):
    light, dark = sorted(
        (linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (first, second)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def oklab(rgb):
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.808675766],
    ]
    return to_lab @ np.cbrt(to_cones @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_can_be_told_apart(theme):
    for colour in PALETTE[theme]:
        assert contrast(colour, PAPER[theme]) >= 3
    for name, matrix in DEFICIENCIES.items():
        seen = [oklab(np.array(matrix) @ linear(colour)) for colour in PALETTE[theme]]
        for (i, first), (j, second) in itertools.combinations(enumerate(seen), 2):
            assert np.linalg.norm(first - second) >= 0.1, (theme, name, i, j)


def test_figures_are_drawn_once_per_theme(drawn_figures):
    names = sorted(path.name for path in drawn_figures.iterdir())
    assert names == [
        "captions.json",
        "errors.dark.svg",
        "errors.light.svg",
        "histogram.dark.svg",
        "histogram.light.svg",
    ]
    for theme, other in (("light", "dark"), ("dark", "light")):
        svg = (drawn_figures / f"errors.{theme}.svg").read_text()
        assert PALETTE[theme][1] in svg
        assert PALETTE[other][1] not in svg


def test_figures_stand_alone_and_have_no_background(drawn_figures):
    svg = (drawn_figures / "errors.light.svg").read_text()
    assert "<text" not in svg, "text must be outlines: the reader's machine need not have the font"
    assert "font-family" not in svg
    assert re.findall(r'(?:xlink:)?href="(?!#)', svg) == []
    background = svg[svg.index('<g id="patch_1">') :]
    assert "fill: none" in background[: background.index("</g>")]


def test_equal_trials_give_equal_files(draw, finished, drawn_figures, tmp_path):
    render_figures(draw, finished, tmp_path / "figures")
    for path in drawn_figures.iterdir():
        assert (tmp_path / "figures" / path.name).read_bytes() == path.read_bytes(), path.name


def test_only_successful_trials_are_drawn(finished, tmp_path):
    seen = []
    render_figures(lambda trials: seen.append(list(trials)) or {}, finished, tmp_path / "figures")
    assert len(seen) == 2
    assert all(trial.ok for trial in seen[0])
    assert len(seen[0]) == 21


def test_a_figure_that_cannot_be_saved_costs_only_itself(finished, tmp_path, caplog):
    def figures(trials):
        good, bad = Figure(), Figure()
        good.subplots().plot([1, 2])
        bad.text(0.5, 0.5, r"$\nosuchcommand{$")
        return {
            "bad": Panel(bad, "Never seen."),
            "good": Panel(good, "Seen."),
            "../escape": Panel(good, "A name that leaves the folder."),
        }

    with caplog.at_level(logging.WARNING):
        errors = render_figures(figures, finished, tmp_path / "figures")
    assert set(errors) == {"bad", "../escape"}
    assert "letters, digits" in errors["../escape"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "captions.json",
        "errors.json",
        "good.dark.svg",
        "good.light.svg",
    ]
    assert not (tmp_path / "escape.light.svg").exists()
    assert "figure 'bad' could not be drawn" in caplog.text
    drawn, undrawn = read_figures(tmp_path / "figures")
    assert [figure.name for figure in drawn] == ["good"]
    assert set(undrawn) == {"bad", "../escape"}


def test_a_function_that_raises_is_recorded_and_leaves_no_open_figure(finished, tmp_path):
    def figures(trials):
        pyplot.figure()
        raise ZeroDivisionError("no trial of this arm")

    before = pyplot.get_fignums()
    errors = render_figures(figures, finished, tmp_path / "figures")
    assert "ZeroDivisionError: no trial of this arm" in errors["*"]
    assert pyplot.get_fignums() == before
    assert read_figures(tmp_path / "figures")[1] == errors


def test_settings_and_figures_of_the_caller_survive(draw, finished, tmp_path):
    before = pyplot.get_fignums()
    own = pyplot.figure()
    with matplotlib.rc_context({"font.size": 33.0}):
        render_figures(draw, finished, tmp_path / "figures")
        assert matplotlib.rcParams["font.size"] == 33.0
    assert pyplot.get_fignums() == [*before, own.number]
    pyplot.close(own)


def test_drawing_again_removes_what_is_gone(draw, finished, tmp_path):
    render_figures(draw, finished, tmp_path / "figures")
    render_figures(lambda trials: {}, finished, tmp_path / "figures")
    assert read_figures(tmp_path / "figures") == ([], {})


def test_a_missing_file_is_named(draw, finished, tmp_path):
    render_figures(draw, finished, tmp_path / "figures")
    (tmp_path / "figures" / "errors.dark.svg").unlink()
    drawn, undrawn = read_figures(tmp_path / "figures")
    assert [figure.name for figure in drawn] == ["histogram"]
    assert undrawn == {"errors": "errors.light.svg or errors.dark.svg is missing"}


@pytest.mark.parametrize("content", ["{", "[1]", "7"])
def test_broken_captions_are_reported_and_not_fatal(tmp_path, content):
    (tmp_path / "captions.json").write_text(content)
    drawn, undrawn = read_figures(tmp_path)
    assert drawn == []
    assert "cannot be read" in undrawn["*"]


def test_a_name_in_captions_cannot_reach_other_files(tmp_path):
    folder = tmp_path / "figures"
    folder.mkdir()
    for theme in PALETTE:
        (tmp_path / f"secret.{theme}.svg").write_text("<svg/>")
    (folder / "captions.json").write_text(json.dumps({"../secret": "x"}))
    assert read_figures(folder)[0] == []


def test_data_addresses_hold_the_file(drawn_figures):
    figure = read_figures(drawn_figures)[0][0]
    head, _, body = figure.data_uri("dark").partition(",")
    assert head == "data:image/svg+xml;base64"
    assert base64.b64decode(body) == figure.dark.read_bytes()
