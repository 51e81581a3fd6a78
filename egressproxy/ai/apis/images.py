"""ImagePart: an image of a request, in the form of any API."""

from __future__ import annotations

from typing import Any, NamedTuple

from egressproxy.ai.apis.message import in_object


class ImagePart(NamedTuple):
    """An image of a request: bytes (0 where a URL names it) and media type ("" where nothing says it)."""

    size: int
    media_type: str


def find_images(value: Any, found: list[ImagePart]) -> None:
    """Add the images of a request, or of a part of it, in any place."""
    if type(value) is list:
        for each in value:
            find_images(each, found)
    elif type(value) is dict:
        image = _image_of(value)
        if image is not None:
            found.append(image)
            return
        for key, each in value.items():
            if key not in ("tools", "functions", "toolConfig") and (type(each) is dict or type(each) is list):
                find_images(each, found)


def _image_of(value: dict[str, Any]) -> ImagePart | None:
    type_ = value.get("type")
    if type_ in ("image_url", "input_image"):
        said = value.get("image_url")
        url = in_object(said, "url") if type(said) is dict else said
        return _image_at(url if type(url) is str else "")
    inline = value.get("inlineData", value.get("inline_data"))
    if type(inline) is dict:
        media_type = str(inline.get("mimeType", inline.get("mime_type", "")))
        return ImagePart(_decoded(inline.get("data")), media_type) if media_type.startswith("image/") else None
    if type_ == "image":
        source = value.get("source")
        data = in_object(source, "data") if type(source) is dict else value.get("data")
        said = in_object(source, "media_type") if type(source) is dict else value.get("mimeType")
        return ImagePart(_decoded(data), said if type(said) is str else "")
    image = value.get("image")
    if type(image) is dict and "format" in image:
        return ImagePart(_decoded(in_object(image, "source", "bytes")), f"image/{image['format']}")
    return None


def _image_at(url: str) -> ImagePart:
    if not url.startswith("data:"):
        return ImagePart(0, "")
    head, _, data = url.partition(",")
    return ImagePart(_decoded(data), head[5:].partition(";")[0])


def _decoded(data: object) -> int:
    """The number of bytes that this base64 encodes."""
    return len(data) * 3 // 4 if type(data) is str else 0
