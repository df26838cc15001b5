"""Image files and their metadata, missing pixels, rotations and attacks."""

import io
import struct

import imagecodecs
import numpy as np
import OpenEXR
import pytest
import tifffile
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import IFDRational

from assay.errors import InputError
from assay.methods.panorama_watermark import attacks, gpano
from assay.methods.panorama_watermark.data import panorama_paths, panoramas
from assay.methods.panorama_watermark.images import as_pixels, read_image, write_image
from assay.methods.panorama_watermark.missing import (
    constant_pole_patches,
    covered_sphere,
    fill_missing,
)
from assay.methods.panorama_watermark.picture import Picture
from assay.methods.panorama_watermark.quality import psnr, ssim, ws_psnr
from assay.methods.panorama_watermark.rotations import random_rotation, rotate_panorama, rotation_matrix
from assay.methods.panorama_watermark.tiff_directories import Directory, append_directories

PIXELS = panoramas(["venice"])["venice"]
ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
XMP = gpano.gpano_packet(512, 256).replace(b"</rdf:RDF>", b"<!-- the user's own --></rdf:RDF>")


def exif_block():
    exif = Image.Exif()
    exif[0x010F], exif[0x0131] = "Maker of cameras", "Stitcher 3"
    exif.get_ifd(0x8769)[0x9003] = "2026:01:02 03:04:05"
    exif[0x8769] = 0  # the TIFF writer looks for the entry before it writes the directory
    return exif


def saved(tmp_path, suffix, **options):
    path = tmp_path / f"in{suffix}"
    exif = exif_block()
    Image.fromarray(PIXELS).save(path, exif=exif, icc_profile=ICC, **options)
    return path


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        (".jpg", {"xmp": XMP, "quality": 97, "subsampling": 0}),
        (".webp", {"xmp": XMP, "lossless": True}),
        (".png", {"pnginfo": None}),
        (".tif", {}),
    ],
)
def test_metadata_survives(tmp_path, suffix, options):
    if suffix == ".png":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", XMP.decode())
        info.add_text("Comment", "kept too")
        options = {"pnginfo": info}
    path = saved(tmp_path, suffix, **options)
    picture = read_image(path)
    out = tmp_path / ("out" + suffix)
    write_image(out, picture)
    with Image.open(out) as image:
        assert image.info["icc_profile"] == ICC
        exif = image.getexif()
        assert (exif[0x010F], exif[0x0131]) == ("Maker of cameras", "Stitcher 3")
        assert exif.get_ifd(0x8769)[0x9003] == "2026:01:02 03:04:05"
        if suffix == ".png":
            assert image.info["Comment"] == "kept too"
    again = read_image(out)
    if suffix == ".tif":
        assert gpano.gpano_values(again.xmp)["ProjectionType"] == "equirectangular"
    else:
        assert again.xmp == XMP
    if suffix != ".jpg":
        assert np.array_equal(again.pixels, PIXELS)
    else:
        assert again.settings["quality"] >= 95
        assert psnr(again.pixels, PIXELS) > 40


def test_jpeg_quality_and_subsampling_follow_the_source(tmp_path):
    for quality, subsampling in ((50, 2), (98, 1), (100, 0)):
        Image.fromarray(PIXELS).save(tmp_path / "a.jpg", quality=quality, subsampling=subsampling)
        picture = read_image(tmp_path / "a.jpg")
        assert abs(picture.settings["quality"] - quality) <= 1
        assert picture.settings["subsampling"] == subsampling
    write_image(tmp_path / "b.jpg", picture, quality=40)
    assert abs(read_image(tmp_path / "b.jpg").settings["quality"] - 40) <= 1
    with pytest.raises(InputError, match="1 to 100"):
        write_image(tmp_path / "b.jpg", picture, quality=0)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits(tmp_path, suffix):
    deep = PIXELS.astype(np.uint16) * 257 + np.arange(512, dtype=np.uint16)[:, None] % 100
    path = tmp_path / ("a" + suffix)
    if suffix == ".png":
        path.write_bytes(imagecodecs.png_encode(deep))
    else:
        tifffile.imwrite(
            path, deep, photometric="rgb", iccprofile=ICC, description="a tour", compression="zlib"
        )
    picture = read_image(path)
    assert np.array_equal(picture.pixels, deep)
    write_image(tmp_path / ("b" + suffix), picture)
    again = read_image(tmp_path / ("b" + suffix))
    assert again.pixels.dtype == np.uint16
    assert np.array_equal(again.pixels, deep)
    assert gpano.gpano_values(again.xmp)["FullPanoWidthPixels"] == "512"
    if suffix == ".tif":
        assert again.icc == ICC
        assert any(tag[3] == "a tour" for tag in again.settings["tags"])


def camera_exif():
    exif = exif_block()
    exif.get_ifd(0x8769).update(
        {
            0x829A: IFDRational(1, 250),  # exposure time
            0x8827: 200,  # sensitivity
            0x9204: IFDRational(-1, 3),  # exposure bias, signed
            0x9286: b"ASCII\0\0\0hello",  # the user's comment, of odd length
            0xA005: {1: "R98", 0x1000: "Exif JPEG Ver. 2.2"},  # interoperability
        }
    )
    exif.get_ifd(0x8825).update({1: "N", 2: (47.0, 22.0, 1.5), 5: b"\0"})
    exif[0x8825] = 0
    return exif


def directories_of(path):
    """EXIF, interoperability and GPS as Pillow reads them, without where they stand."""
    with Image.open(path) as image:
        exif = image.getexif()
        found = [dict(exif.get_ifd(tag)) for tag in (0x8769, 0xA005, 0x8825)]
        found[0].pop(0xA005)
        return found


@pytest.mark.parametrize("mode", ["I;16", "I;16B"], ids=["little-endian", "big-endian"])
def test_exif_of_deep_tiffs(tmp_path, mode):
    """Directories that Pillow wrote into a 16-bit file: another library writes that file anew."""
    deep = PIXELS[..., 1].astype(np.uint16) * 257
    data = deep.astype(">u2" if mode == "I;16B" else "<u2").tobytes()
    Image.frombytes(mode, (512, 256), data).save(tmp_path / "a.tif", exif=camera_exif())
    assert (tmp_path / "a.tif").read_bytes()[:2] == (b"MM" if mode == "I;16B" else b"II")
    picture = read_image(tmp_path / "a.tif")
    assert np.array_equal(picture.pixels, deep)
    write_image(tmp_path / "b.tif", picture)
    before, after = directories_of(tmp_path / "a.tif"), directories_of(tmp_path / "b.tif")
    assert before == after
    assert after[0][0x9204] == pytest.approx(-1 / 3)
    assert after[0][0x9286] == b"ASCII\0\0\0hello"
    assert after[1] == {1: "R98", 0x1000: "Exif JPEG Ver. 2.2"}
    assert after[2][2] == (47.0, 22.0, 1.5)
    assert np.array_equal(read_image(tmp_path / "b.tif").pixels, deep)
    write_image(tmp_path / "c.tif", read_image(tmp_path / "b.tif"))
    assert directories_of(tmp_path / "c.tif") == after


def test_exif_that_cannot_be_copied(tmp_path):
    deep = PIXELS[..., 1].astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "a.tif", exif=camera_exif())
    data = bytearray((tmp_path / "a.tif").read_bytes())
    (first,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, first)
    places = {
        struct.unpack_from("<H", data, place)[0]: place
        for place in range(first + 2, first + 2 + 12 * count, 12)
    }
    for place in (len(data) - 3, first):  # cut off, and a directory that holds itself
        struct.pack_into("<I", data, places[0x8769] + 8, place)
        (tmp_path / "b.tif").write_bytes(data)
        with pytest.warns(UserWarning, match="EXIF directories cannot be copied"):
            picture = read_image(tmp_path / "b.tif")
        assert np.array_equal(picture.pixels, deep)
        write_image(tmp_path / "c.tif", picture)
        assert np.array_equal(read_image(tmp_path / "c.tif").pixels, deep)


def test_exif_of_tiffs_with_64_bit_offsets(tmp_path):
    """They are neither read nor written, and the file stays readable."""
    deep = PIXELS[..., 1].astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "a.tif", exif=camera_exif(), big_tiff=True)
    with pytest.warns(UserWarning, match="cannot be copied: not a TIFF file with offsets of 32 bits"):
        assert np.array_equal(read_image(tmp_path / "a.tif").pixels, deep)
    before = (tmp_path / "a.tif").read_bytes()
    with pytest.warns(UserWarning, match="left out"):
        append_directories(tmp_path / "a.tif", {34665: Directory({}, {})})
    assert (tmp_path / "a.tif").read_bytes() == before


@pytest.mark.parametrize("suffix", [".jpg", ".webp", ".png", ".tif"])
def test_places_survive(tmp_path, suffix):
    """Where a picture was taken, in 8-bit files."""
    Image.fromarray(PIXELS).save(tmp_path / ("a" + suffix), exif=camera_exif())
    write_image(tmp_path / ("b" + suffix), read_image(tmp_path / ("a" + suffix)))
    assert directories_of(tmp_path / ("b" + suffix)) == directories_of(tmp_path / ("a" + suffix))


def test_hdr_files(tmp_path):
    light = ((PIXELS / 255.0) ** 2.2 * 30).astype(np.float32)
    OpenEXR.File({"type": OpenEXR.scanlineimage, "owner": "me"}, {"RGB": light}).write(
        str(tmp_path / "a.exr")
    )
    picture = read_image(tmp_path / "a.exr")
    assert picture.hdr
    np.testing.assert_allclose(picture.pixels, light)
    write_image(tmp_path / "b.exr", picture)
    again = read_image(tmp_path / "b.exr")
    np.testing.assert_allclose(again.pixels, light)
    assert again.settings["header"]["owner"] == "me"
    (tmp_path / "a.hdr").write_bytes(imagecodecs.rgbe_encode(light))
    radiance = read_image(tmp_path / "a.hdr")
    write_image(tmp_path / "b.hdr", radiance)
    np.testing.assert_allclose(read_image(tmp_path / "b.hdr").pixels, radiance.pixels, rtol=0.01)

    broken = light.copy()
    broken[0, :3] = -1
    OpenEXR.File({"type": OpenEXR.scanlineimage}, {"RGB": broken}).write(str(tmp_path / "n.exr"))
    with pytest.warns(UserWarning, match="9 negative values"):
        assert read_image(tmp_path / "n.exr").pixels.min() == 0
    broken[0, 0] = np.nan
    OpenEXR.File({"type": OpenEXR.scanlineimage}, {"RGB": broken}).write(str(tmp_path / "n.exr"))
    with pytest.raises(InputError, match="3 values of the image are not finite"):
        read_image(tmp_path / "n.exr")


def test_unsupported_and_damaged_files(tmp_path):
    Image.fromarray(PIXELS).convert("CMYK").save(tmp_path / "cmyk.jpg")
    Image.fromarray(PIXELS).convert("P").save(tmp_path / "palette.png")
    Image.fromarray(PIXELS).save(tmp_path / "a.bmp")
    (tmp_path / "cut.jpg").write_bytes(panorama_paths()["venice"].read_bytes()[:9000])
    (tmp_path / "text.png").write_bytes(b"hello")
    tifffile.imwrite(tmp_path / "whole.tif", PIXELS.astype(np.uint16), photometric="rgb")
    (tmp_path / "cut.tif").write_bytes((tmp_path / "whole.tif").read_bytes()[:9000])
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    for name, message in {
        "cmyk.jpg": "CMYK",
        "palette.png": "palette",
        "a.bmp": "BMP files are not supported",
        "cut.jpg": "cannot be decoded",
        "text.png": "cannot be decoded",
        "cut.png": "cannot be decoded",
        "cut.tif": "cannot be decoded",
        "none.jpg": "cannot be read",
    }.items():
        with pytest.raises(InputError, match=message) as caught:
            read_image(tmp_path / name)
        assert name in str(caught.value)


def test_what_counts_as_an_image():
    assert np.array_equal(as_pixels(Image.fromarray(PIXELS), False)[0], PIXELS)
    with pytest.raises(InputError, match="mode CMYK"):
        as_pixels(Image.new("CMYK", (4, 2)), False)
    with pytest.raises(InputError, match="not int"):
        as_pixels(7, False)


def test_gpano():
    packet = gpano.gpano_packet(512, 256)
    assert gpano.with_gpano(packet, 1, 1) == packet
    assert gpano.gpano_values(gpano.with_gpano(None, 512, 256))["UsePanoramaViewer"] == "True"
    other = b'<x:xmpmeta><rdf:RDF><rdf:Description dc:title="x"/></rdf:RDF></x:xmpmeta>'
    merged = gpano.with_gpano(other, 512, 256)
    assert b'dc:title="x"' in merged
    assert gpano.gpano_values(merged)["CroppedAreaImageWidthPixels"] == "512"
    halved = gpano.gpano_values(gpano.resized(packet, 0.5, 0.5))
    assert (halved["FullPanoWidthPixels"], halved["FullPanoHeightPixels"]) == ("256", "128")
    assert gpano.placement(packet, 512, 256) is None
    elements = b"<GPano:ProjectionType>equirectangular</GPano:ProjectionType>"
    assert gpano.gpano_values(elements) == {"ProjectionType": "equirectangular"}


def partial_xmp(**values):
    text = gpano.gpano_packet(512, 256).decode()
    for name, value in values.items():
        import re

        text = re.sub(f'GPano:{name}="[^"]*"', f'GPano:{name}="{value}"', text)
    return text.encode()


def test_partial_panoramas(tmp_path):
    """A panorama without its nadir: placed in the sphere, cut out again when written."""
    xmp = partial_xmp(CroppedAreaImageHeightPixels=220)
    Image.fromarray(PIXELS[:220]).save(tmp_path / "a.png")
    bare = read_image(tmp_path / "a.png")
    picture = read_image(tmp_path / "a.png", gpano.Placement(0, 0, 512, 256))
    assert bare.pixels.shape == (220, 512, 3)
    assert picture.pixels.shape == (256, 512, 3)
    assert picture.shown[:220].all()
    assert not picture.shown[220:].any()
    write_image(tmp_path / "b.png", picture)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "b.png")), PIXELS[:220])
    where = gpano.placement(xmp, 512, 220)
    assert where == gpano.Placement(0, 0, 512, 256)
    # Sizes written for twice the resolution.
    stale = partial_xmp(
        CroppedAreaImageHeightPixels=440, CroppedAreaImageWidthPixels=1024, FullPanoWidthPixels=1024,
        FullPanoHeightPixels=512,
    )  # fmt: skip
    assert gpano.placement(stale, 512, 220) == gpano.Placement(0, 0, 512, 256)
    with pytest.raises(InputError, match="aren't numbers"):
        gpano.placement(partial_xmp(CroppedAreaImageHeightPixels="x"), 512, 220)
    with pytest.raises(InputError, match="aren't positive"):
        gpano.placement(partial_xmp(CroppedAreaImageHeightPixels="0"), 512, 220)
    with pytest.raises(InputError, match="doesn't fit"):
        gpano.Placement(0, 50, 512, 256).place(PIXELS[:220])


@pytest.mark.parametrize("left", [100, 400])
def test_where_a_partial_panorama_lies(left):
    """Its left edge counts from the full panorama's, also when it goes on over the seam."""
    columns = (left + np.arange(300)) % 512
    xmp = partial_xmp(
        CroppedAreaImageWidthPixels=300, CroppedAreaImageHeightPixels=200, CroppedAreaLeftPixels=left,
        CroppedAreaTopPixels=20,
    )  # fmt: skip
    where = gpano.placement(xmp, 300, 200)
    assert where == gpano.Placement(left, 20, 512, 256)
    part = PIXELS[20:220][:, columns]
    full, shown = where.place(part)
    assert np.array_equal(full[20:220][:, columns], PIXELS[20:220][:, columns])
    assert shown.sum() == 300 * 200
    assert np.array_equal(full[shown], PIXELS[shown])
    assert np.array_equal(where.cut(full, 300, 200), part)


def test_files_of_several_pictures(tmp_path):
    first, second = Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1])
    for name in ("a.png", "a.webp", "a.tif"):
        first.save(tmp_path / name, save_all=True, append_images=[second])
        with pytest.raises(InputError, match="2 pictures"):
            read_image(tmp_path / name)


def test_fill():
    luma = PIXELS[..., 1].astype(np.float32)
    valid = np.ones(luma.shape, bool)
    assert fill_missing(luma, None) is luma
    assert fill_missing(luma, valid) is luma
    valid[200:] = False
    valid[:, :30] = False
    damaged = np.where(valid, luma, 1e6)
    filled = fill_missing(damaged, valid)
    assert np.array_equal(filled[valid], luma[valid])
    assert luma.min() <= filled.min()
    assert filled.max() <= luma.max()
    constant = fill_missing(np.where(valid, 7.0, 99.0).astype(np.float32), valid)
    np.testing.assert_allclose(constant, 7.0, rtol=1e-6)


def test_patches():
    assert constant_pole_patches(PIXELS) is None
    covered = attacks.cover_pole(PIXELS, 30)
    valid = constant_pole_patches(covered)
    assert not valid[-42:].any()
    assert 1 - covered_sphere(valid) == pytest.approx((1 - np.cos(np.radians(30))) / 2, abs=0.005)
    assert constant_pole_patches(attacks.cover_pole(PIXELS, 100)) is None
    zenith = constant_pole_patches(attacks.cover_pole(PIXELS, 30, pole="zenith"))
    assert not zenith[:42].any()


def test_rotation_of_pixels():
    for image in (PIXELS, PIXELS[..., 0], PIXELS.astype(np.uint16) * 257, PIXELS / 255.0):
        turned = rotate_panorama(image, rotation_matrix(yaw=90))
        assert turned.dtype == image.dtype
        np.testing.assert_allclose(turned, np.roll(image, 128, axis=1), atol=1)
        np.testing.assert_allclose(rotate_panorama(image, np.eye(3), order=3), image, atol=1)
    upside_down = rotate_panorama(PIXELS, rotation_matrix(roll=180))
    assert np.abs(upside_down.astype(int) - PIXELS[::-1, ::-1]).max() <= 1
    x = random_rotation(3)
    np.testing.assert_allclose(x @ x.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(x) == pytest.approx(1)
    with pytest.raises(InputError, match="order"):
        rotate_panorama(PIXELS, x, order=2)
    with pytest.raises(InputError, match="H x 2H"):
        rotate_panorama(PIXELS[:100], x)


def test_bicubic_rotation_is_nearer_than_bilinear():
    """A smooth field that is known everywhere, turned."""
    theta = (np.arange(64) + 0.5)[:, None] * np.pi / 64
    phi = (np.arange(128) + 0.5) * 2 * np.pi / 128
    points = np.stack(
        np.broadcast_arrays(np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)), -1
    )
    rotation = random_rotation(0)

    def field(x):
        return np.sin(7 * x[..., 0]) * np.cos(5 * x[..., 1] + x[..., 2])

    errors = [
        np.abs(rotate_panorama(field(points), rotation, order=order) - field(points @ rotation)).max()
        for order in (1, 3)
    ]
    assert errors[1] < errors[0] / 3 < 0.02


def test_attacks():
    assert np.array_equal(attacks.flip(attacks.flip(PIXELS)), PIXELS)
    assert attacks.resize(PIXELS, 0.5).shape == (128, 256, 3)
    deep = attacks.resize(PIXELS.astype(np.uint16) * 257, 0.5)
    assert np.abs(deep / 257 - attacks.resize(PIXELS, 0.5)).mean() < 3
    assert 25 < psnr(attacks.jpeg(PIXELS, 30), PIXELS) < psnr(attacks.jpeg(PIXELS, 90), PIXELS)
    assert psnr(attacks.webp(PIXELS, 80), PIXELS) > 30
    rgba = np.dstack([PIXELS, np.full((256, 512), 9, np.uint8)])
    assert np.all(attacks.noise(rgba, 10, 0)[..., 3] == 9)
    assert np.array_equal(attacks.noise(PIXELS, 10, 0), attacks.noise(PIXELS, 10, 0))
    assert attacks.gamma(PIXELS, 0.7).mean() > PIXELS.mean()
    assert not attacks.cover_strip(PIXELS, 36, start=350)[:, :37].any()
    chain = attacks.attack(
        PIXELS, rotation=np.eye(3), scale=0.5, deviation=2.0, exponent=0.9, mirrored=True, quality=70
    )
    assert chain.shape == (128, 256, 3)
    for wrong in (
        lambda: attacks.jpeg(PIXELS, 0),
        lambda: attacks.jpeg(rgba, 50),
        lambda: attacks.jpeg(PIXELS.astype(np.uint16), 50),
        lambda: attacks.resize(PIXELS, 0.01),
        lambda: attacks.gamma(PIXELS, 0),
    ):
        with pytest.raises(InputError):
            wrong()


def test_quality():
    other = PIXELS.copy()
    other[128] ^= 16
    assert psnr(PIXELS, PIXELS) == np.inf
    assert ws_psnr(PIXELS, other) < psnr(PIXELS, other)
    other = PIXELS.copy()
    other[0] ^= 16
    assert ws_psnr(PIXELS, other) > psnr(PIXELS, other) + 10
    grey = PIXELS[..., 1]
    assert ssim(grey, grey) == pytest.approx(1.0)
    assert ssim(grey, attacks.noise(grey, 20, 0)) < 0.8


def test_the_embedded_panoramas():
    paths = panorama_paths()
    assert len(paths) == 18
    assert sum(path.stat().st_size for path in paths.values()) < 2_900_000
    assert all(image.shape == (256, 512, 3) for image in panoramas(["sky", "lab"]).values())
    with pytest.raises(InputError, match="choose from"):
        panoramas(["moon"])


def test_pillow_reads_what_was_written(tmp_path):
    buffer = io.BytesIO()
    picture = Picture(PIXELS, "PNG", icc=ICC, exif=exif_block().tobytes())
    write_image(tmp_path / "x.png", picture)
    buffer.write((tmp_path / "x.png").read_bytes())
    with Image.open(buffer) as image:
        assert image.info["icc_profile"] == ICC
        assert image.getexif()[0x010F] == "Maker of cameras"
