"""Folders of images: modes, sizes, damage, classes, captions, and what is written."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from assay.errors import InputError
from assay.methods.jepa_guidance import images as images_module
from assay.methods.jepa_guidance.images import (
    contact_sheet,
    list_images,
    read_captions,
    read_classes,
    read_facts,
    read_image,
    read_images,
    to_bytes,
    write_png,
)

GREEN = (30, 200, 60)


@pytest.fixture
def photo():
    """A photograph-like image: smooth colours, 12 by 8."""
    y, x = np.mgrid[0:8, 0:12]
    return Image.fromarray(np.stack([20 * x, 30 * y, 10 * (x + y)], axis=-1).astype(np.uint8))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK", "L", "LA", "1", "I;16", "YCbCr"])
def test_every_mode_becomes_grey_and_colour(photo, tmp_path, mode):
    suffix = "jpg" if mode in ("CMYK", "YCbCr") else "png"
    grey = mode in ("L", "LA", "1", "I;16")
    if mode == "I;16":
        image = Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257)
    else:
        image = photo.convert(mode)
    image.save(
        tmp_path / f"image.{suffix}", **({"quality": 100, "subsampling": 0} if suffix == "jpg" else {})
    )
    colour = read_image(tmp_path / f"image.{suffix}", channels=3)
    assert colour.shape == (3, 8, 12)
    assert colour.dtype == np.uint8
    expected = photo.convert("L").convert("RGB") if grey else photo
    # A palette has other colours already.
    expected = image.convert("RGB") if mode == "P" else expected
    if mode != "1":
        tolerance = {"CMYK": 8, "YCbCr": 8}.get(mode, 0)
        difference = colour.astype(int) - np.asarray(expected).transpose(2, 0, 1).astype(int)
        assert abs(difference).max() <= tolerance
    assert read_image(tmp_path / f"image.{suffix}", channels=1).shape == (1, 8, 12)


def test_transparent_pixels_show_white(tmp_path):
    image = Image.new("RGBA", (4, 4), (*GREEN, 255))
    image.putpixel((0, 0), (*GREEN, 0))
    image.putpixel((1, 0), (0, 0, 0, 128))
    image.save(tmp_path / "a.png")
    pixels = read_image(tmp_path / "a.png")
    assert pixels[:, 0, 0].tolist() == [255, 255, 255]
    assert pixels[:, 0, 1].tolist() == [127, 127, 127]
    assert tuple(pixels[:, 3, 3]) == GREEN


def test_an_orientation_tag_is_applied(photo, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(tmp_path / "turned.png", exif=exif)
    turned = read_image(tmp_path / "turned.png")
    assert turned.shape == (3, 12, 8)
    assert np.array_equal(turned, np.asarray(photo.rotate(-90, expand=True)).transpose(2, 0, 1))


def test_the_middle_square_is_resized(tmp_path):
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = GREEN
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    read = read_image(tmp_path / "wide.png", size=5)
    assert read.shape == (3, 5, 5)
    assert (read == np.array(GREEN)[:, None, None]).all()


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n\0\0"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.png cannot be decoded"):
        read_image(tmp_path / "bad.png")


def test_a_truncated_file_is_named(photo, tmp_path):
    photo.resize((200, 200)).save(tmp_path / "cut.png")
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"cut\.png cannot be decoded"):
        read_image(tmp_path / "cut.png")


def test_floats_out_of_range_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "ok.tif")
    Image.fromarray(np.full((4, 4), 7.0, dtype=np.float32)).save(tmp_path / "far.tif")
    assert read_image(tmp_path / "ok.tif", channels=1).max() == 128
    with pytest.raises(InputError, match=r"far\.tif cannot be decoded.*\[0, 1\]"):
        read_image(tmp_path / "far.tif")


@pytest.fixture
def folder(photo, tmp_path):
    root = tmp_path / "data"
    for place, name in (("a", "1.png"), ("a", "2.jpg"), ("b", "3.PNG"), ("b/deep", "4.gif")):
        (root / place).mkdir(parents=True, exist_ok=True)
        photo.convert("P" if name.endswith("gif") else "RGB").save(root / place / name)
    (root / "b" / "broken.png").write_bytes(b"?")
    (root / ".hidden").mkdir()
    photo.save(root / ".hidden" / "5.png")
    (root / "notes.txt").write_text("no image")
    return root


def test_a_folder_is_read_in_one_size_and_damage_is_listed(folder):
    assert list_images(folder) == ["a/1.png", "a/2.jpg", "b/3.PNG", "b/broken.png", "b/deep/4.gif"]
    read = read_images(folder)
    assert read.names == ["a/1.png", "a/2.jpg", "b/3.PNG", "b/deep/4.gif"]
    assert read.pixels.shape == (4, 3, 8, 8)
    assert [name for name, _ in read.unreadable] == ["b/broken.png"]
    assert read.images.max() <= 1
    assert read_images(folder, 6, 1).pixels.shape == (4, 1, 6, 6)


def test_gigabytes_of_images_lie_in_a_file(folder, monkeypatch):
    expected = read_images(folder)
    monkeypatch.setattr(images_module, "_MEMORY", 100)
    seen = []
    read = read_images(folder, advance=seen.append)
    assert torch.equal(read.pixels, expected.pixels)
    assert read.names == expected.names
    assert sum(seen) == 5


def test_grey_images_are_read_as_grey(photo, tmp_path):
    for index in range(3):
        photo.convert("L" if index else "RGB").convert("L").convert("RGB").save(tmp_path / f"{index}.png")
    assert read_images(tmp_path).pixels.shape == (3, 1, 8, 8)
    photo.save(tmp_path / "colour.png")
    assert read_images(tmp_path).pixels.shape == (4, 3, 8, 8)


def test_classes_are_sub_folders_or_stand_in_the_metadata(folder):
    numbers, names = read_classes(read_images(folder))
    assert names == ["a", "b", "b/deep"]
    assert numbers.tolist() == [0, 0, 1, 2]
    rows = "\n".join(f"{name},{label}" for name, label in zip(read_images(folder).names, "xyxy", strict=True))
    (folder / "metadata.csv").write_text("file_name,label\n" + rows)
    numbers, names = read_classes(read_images(folder))
    assert (names, numbers.tolist()) == (["x", "y"], [0, 1, 0, 1])


def test_captions_stand_in_the_metadata(folder):
    images = read_images(folder)
    with pytest.raises(InputError, match=r"a/1\.png has no caption"):
        read_captions(images)
    rows = [json.dumps({"file_name": name, "text": f"number {i}"}) for i, name in enumerate(images.names)]
    (folder / "metadata.jsonl").write_text("\n".join(rows) + "\n")
    assert read_captions(images) == ["number 0", "number 1", "number 2", "number 3"]
    (folder / "metadata.jsonl").write_text("{broken")
    with pytest.raises(InputError, match="column file_name"):
        read_captions(images)
    (folder / "metadata.jsonl").write_text('{"name": "a"}')
    with pytest.raises(InputError, match="column file_name"):
        read_captions(images)


def test_images_without_classes_are_refused(photo, tmp_path):
    photo.save(tmp_path / "1.png")
    with pytest.raises(InputError, match=r"1\.png has no class"):
        read_classes(read_images(tmp_path))
    (tmp_path / "one").mkdir()
    (tmp_path / "1.png").rename(tmp_path / "one" / "1.png")
    with pytest.raises(InputError, match="there must be two"):
        read_classes(read_images(tmp_path))


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        list_images(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        list_images(tmp_path / "absent")
    (tmp_path / "a.png").write_bytes(b"?")
    with pytest.raises(InputError, match="none of the 1 images"):
        read_images(tmp_path)


@settings(max_examples=20, deadline=None)
@given(channels=st.sampled_from([1, 3]), height=st.integers(1, 9), width=st.integers(1, 9))
def test_png_files_come_back_unchanged(tmp_path_factory, channels, height, width):
    path = tmp_path_factory.mktemp("png") / "a.png"
    generator = torch.Generator().manual_seed(height * width)
    image = torch.rand(channels, height, width, generator=generator)
    write_png(path, image, {"seed": "7"})
    assert np.array_equal(read_image(path, channels=channels), to_bytes(image[None])[0])
    assert read_facts(path) == {"seed": "7"}


def test_facts_of_damaged_files_are_none(photo, tmp_path):
    photo.save(tmp_path / "plain.png")
    assert read_facts(tmp_path / "plain.png") == {}
    assert read_facts(tmp_path / "absent.png") == {}
    write_png(tmp_path / "a.png", torch.rand(3, 60, 60), {"seed": "1"})
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[: len(content) // 2])
    assert read_facts(tmp_path / "a.png") == {}


@pytest.mark.parametrize(
    ("count", "columns", "rows_and_columns"), [(5, None, (2, 3)), (4, 4, (1, 4)), (1, 9, (1, 1))]
)
def test_a_contact_sheet_shows_every_image_in_its_place(count, columns, rows_and_columns):
    images = torch.arange(1, count + 1).view(-1, 1, 1, 1).expand(-1, 3, 2, 2) / 10
    sheet = contact_sheet(images, columns)
    rows, width = rows_and_columns
    step = 2 * 8 + 1
    assert sheet.shape == (3, rows * step + 1, width * step + 1)
    for index in range(count):
        top, left = index // width * step + 1, index % width * step + 1
        place = sheet[:, top : top + step - 1, left : left + step - 1]
        assert (place == to_bytes(images[index : index + 1])[0, 0, 0, 0]).all()


def test_a_large_sheet_is_not_enlarged():
    assert contact_sheet(np.zeros((1, 1, 900, 900), dtype=np.uint8)).shape == (1, 902, 902)
    with pytest.raises(InputError, match="at least one image"):
        contact_sheet(torch.zeros(0, 1, 4, 4))
