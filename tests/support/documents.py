"""Small PDF and DOCX files made by hand, whole and damaged."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml"


def pdf(pages: Sequence[Sequence[str]], *, title: str = "", encrypted: bool = False) -> bytes:
    """A PDF of pages of lines in Helvetica; '' leaves a line out. Encrypted, it opens with a
    password that nobody knows."""
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        f"<</Title({title})>>",
    ]
    for number, lines in enumerate(pages):
        words = "".join(f"({line}) Tj 0 -14 Td " if line else "0 -14 Td " for line in lines)
        content = f"BT /F1 12 Tf 72 720 Td {words}ET" if any(lines) else "0 0 99 99 re f"
        objects += [
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents {6 + 2 * number} 0 R"
            "/Resources<</Font<</F1 3 0 R>>>>>>",
            f"<</Length {len(content)}>>stream\n{content}\nendstream",
        ]
    if encrypted:
        objects.append(f"<</Filter/Standard/V 1/R 2/O<{'a1' * 32}>/U<{'b2' * 32}>/P -4>>")
    out, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj{body}endobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    encrypt = f"/Encrypt {len(objects)} 0 R/ID[<00><00>]" if encrypted else ""
    return (
        f"{out}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
        f"trailer<</Size {len(objects) + 1}/Root 1 0 R/Info 4 0 R{encrypt}>>\n"
        f"startxref\n{len(out)}\n%%EOF\n"
    ).encode("latin-1")


def paragraph(text: str, style: str = "") -> str:
    """A paragraph for ``docx``; style: Heading1, ListBullet …"""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    if style == "ListBullet":
        properties = '<w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr>'
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def table(*rows: Sequence[str]) -> str:
    """A table for ``docx``."""
    cells = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def docx(*body: str) -> bytes:
    """A Word file of paragraphs and tables."""
    types = "".join(
        f'<Override PartName="/word/{part}.xml" ContentType="{_WORD}.{kind}+xml"/>'
        for part, kind in (("document", "document.main"), ("numbering", "numbering"))
    )
    numbering = (
        '<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/></w:lvl>'
        '</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    )
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default'
            ' Extension="rels"'
            ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f"{types}</Types>",
            "_rels/.rels": _relationship("officeDocument", "word/document.xml"),
            "word/_rels/document.xml.rels": _relationship("numbering", "numbering.xml"),
            "word/numbering.xml": f'<w:numbering xmlns:w="{_W}">{numbering}</w:numbering>',
            "word/document.xml": f'<w:document xmlns:w="{_W}"><w:body>{"".join(body)}</w:body>'
            "</w:document>",
        }
    )


def zipped(files: dict[str, str]) -> bytes:
    """A ZIP archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def locked(archive: bytes) -> bytes:
    """The ZIP archive with every entry said to be encrypted."""
    out, at = bytearray(archive), -1
    while (at := archive.find(b"PK\x01\x02", at + 1)) >= 0:
        out[at + 8] |= 1
    return bytes(out)


def understated(archive: bytes, size: int) -> bytes:
    """The ZIP archive with every entry said to unpack to size bytes."""
    out, at = bytearray(archive), -1
    while (at := archive.find(b"PK\x01\x02", at + 1)) >= 0:
        out[at + 24 : at + 28] = size.to_bytes(4, "little")
    return bytes(out)


def _relationship(kind: str, target: str) -> str:
    return (
        f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="r1" Type="{_OFFICE}/{kind}" Target="{target}"/></Relationships>'
    )
