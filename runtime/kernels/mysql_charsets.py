"""Charsets of MySQL and MariaDB as tables that a kernel can follow.

The names are those of the servers, and so are the letters: latin1 is Windows' with its five holes
filled, sjis has a backslash in two places. Most are what Python has by another name, give or take a
few letters; the servers themselves are what the tests compare with.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

# How a charset is read: as it stands, by a table, or by its units.
UTF8, TABLE, UTF16, UTF16LE, UTF32, BINARY = range(6)
_UNITS = {
    "utf8mb4": UTF8,
    "utf8mb3": UTF8,
    "utf8": UTF8,
    "ucs2": UTF16,
    "utf16": UTF16,
    "utf16le": UTF16LE,
    "utf32": UTF32,
    "binary": BINARY,
}

# In a table: no letter, or a byte that begins one of two, three, or two or four bytes.
NONE, TWO, THREE, FOUR = -1, -2, -3, -4
_PAIRS = 256  # where letters of two bytes begin in a table
_MORE = 256 + 65536  # and those of three or four
_LINEAR = 39420  # of four bytes, the others follow from their number alone
_BEYOND = 189000  # the number of U+10000

_CODECS = {
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "ascii": "ascii",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "hp8": "hp_roman8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "swe7": "ascii",
    "tis620": "tis_620",
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
}
# What the servers read in another way: byte=letter, or byte=letter*count for a run.
_OWN = {
    "latin1": "81=81 8d=8d 8f=8f 90=90 9d=9d",
    "cp866": "fc=207f fd=b2",
    "greek": "a1=2bd a2=2bc",
    "hebrew": "af=203e",
    "koi8u": "95=2022",
    "swe7": "40=c9 5b=c4 5c=d6 5d=c5 5e=dc 60=e9 7b=e4 7c=f6 7d=e5 7e=fc",
    "sjis": "815f=5c",
    "armscii8": """
        80=80*33 a1=2741 a2=a7 a3=589 a4=29 a5=28 a6=bb a7=ab a8=2014 a9=2e aa=55d ab=2c*2 ad=55f
        ae=2026 af=55c b0=55b b1=55e b2=531 b3=561 b4=532 b5=562 b6=533 b7=563 b8=534 b9=564 ba=535
        bb=565 bc=536 bd=566 be=537 bf=567 c0=538 c1=568 c2=539 c3=569 c4=53a c5=56a c6=53b c7=56b
        c8=53c c9=56c ca=53d cb=56d cc=53e cd=56e ce=53f cf=56f d0=540 d1=570 d2=541 d3=571 d4=542
        d5=572 d6=543 d7=573 d8=544 d9=574 da=545 db=575 dc=546 dd=576 de=547 df=577 e0=548 e1=578
        e2=549 e3=579 e4=54a e5=57a e6=54b e7=57b e8=54c e9=57c ea=54d eb=57d ec=54e ed=57e ee=54f
        ef=57f f0=550 f1=580 f2=551 f3=581 f4=552 f5=582 f6=553 f7=583 f8=554 f9=584 fa=555 fb=585
        fc=556 fd=586 fe=2019 ff=27
    """,
    "dec8": """
        80=80*36 a5=a5 a7=a7 a8=a4 a9=a9*3 b0=b0*4 b5=b5*3 b9=b9*5 bf=bf*17 d1=d1*6 d7=152 d8=d8*5
        dd=178 df=df*17 f1=f1*6 f7=153 f8=f8*5 fd=ff
    """,
    "geostd8": """
        80=20ac 82=201a 84=201e 85=2026 86=2020*2 89=2030 8b=2039 91=2018*2 93=201c*2 95=2022
        96=2013*2 9b=203a a0=a0*32 c0=10d0*7 c7=10f1 c8=10d7*6 ce=10f2 cf=10dd*6 d5=10f3 d6=10e3*12
        e2=10f4 e3=10ef*2 e5=10f5 fd=2116
    """,
    "keybcs2": """
        80=10c 81=fc 82=e9 83=10f 84=e4 85=10e 86=164 87=10d 88=11b 89=11a 8a=139 8b=cd 8c=13e
        8d=13a 8e=c4 8f=c1 90=c9 91=17e 92=17d 93=f4 94=f6 95=d3 96=16f 97=da 98=fd 99=d6 9a=dc
        9b=160 9c=13d 9d=dd 9e=158 9f=165 a0=e1 a1=ed a2=f3 a3=fa a4=148 a5=147 a6=16e a7=d4 a8=161
        a9=159 aa=155 ab=154 ac=bc ad=a1 ae=ab af=bb b0=2591*3 b3=2502 b4=2524 b5=2561*2 b7=2556
        b8=2555 b9=2563 ba=2551 bb=2557 bc=255d bd=255c be=255b bf=2510 c0=2514 c1=2534 c2=252c
        c3=251c c4=2500 c5=253c c6=255e*2 c8=255a c9=2554 ca=2569 cb=2566 cc=2560 cd=2550 ce=256c
        cf=2567*2 d1=2564*2 d3=2559 d4=2558 d5=2552*2 d7=256b d8=256a d9=2518 da=250c db=2588
        dc=2584 dd=258c de=2590 df=2580 e0=3b1 e1=df e2=393 e3=3c0 e4=3a3 e5=3c3 e6=b5 e7=3c4 e8=3a6
        e9=398 ea=3a9 eb=3b4 ec=221e ed=3c6 ee=3b5 ef=2229 f0=2261 f1=b1 f2=2265 f3=2264 f4=2320*2
        f6=f7 f7=2248 f8=b0 f9=2219 fa=b7 fb=221a fc=207f fd=b2 fe=25a0 ff=a0
    """,
    "big5": "f9d6=7881 f9d7=92b9 f9d8=88cf f9d9=58bb f9da=6052 f9db=7ca7 f9dc=5afa",
    "ujis": "a1c0=5c",
    "gb18030": "a8bc=1e3f 8135f437=e7c7",
    "eucjpms": """
        a1c1=ff5e a1c2=2225 a1dd=ff0d a1f1=ffe0*2 a2cc=ffe2 ada1=2460*20 adb5=2160*10 adc0=3349
        adc1=3314 adc2=3322 adc3=334d adc4=3318 adc5=3327 adc6=3303 adc7=3336 adc8=3351 adc9=3357
        adca=330d adcb=3326 adcc=3323 adcd=332b adce=334a adcf=333b add0=339c*3 add3=338e*2
        add5=33c4 add6=33a1 addf=337b ade0=301d ade1=301f ade2=2116 ade3=33cd ade4=2121 ade5=32a4*5
        adea=3231*2 adec=3239 aded=337e adee=337d adef=337c adf0=2252 adf1=2261 adf2=222b adf3=222e
        adf4=2211 adf5=221a adf6=22a5 adf7=2220 adf8=221f adf9=22bf adfa=2235 adfb=2229*2
        8fa2b7=ff5e 8fa2c3=ffe4 8ff3f3=2170*10 8ff3fd=2160*2 8ff4a1=2162*8 8ff4a9=ff07 8ff4aa=ff02
        8ff4ab=3231 8ff4ac=2116 8ff4ad=2121 8ff4ae=70bb 8ff4af=4efc 8ff4b0=50f4 8ff4b1=51ec
        8ff4b2=5307 8ff4b3=5324 8ff4b4=fa0e 8ff4b5=548a 8ff4b6=5759 8ff4b7=fa0f*2 8ff4b9=589e
        8ff4ba=5bec 8ff4bb=5cf5 8ff4bc=5d53 8ff4bd=fa11 8ff4be=5fb7 8ff4bf=6085 8ff4c0=6120
        8ff4c1=654e 8ff4c2=663b 8ff4c3=6665 8ff4c4=fa12 8ff4c5=f929 8ff4c6=6801 8ff4c7=fa13*2
        8ff4c9=6a6b 8ff4ca=6ae2 8ff4cb=6df8 8ff4cc=6df2 8ff4cd=7028 8ff4ce=fa15*2 8ff4d0=7501
        8ff4d1=7682 8ff4d2=769e 8ff4d3=fa17 8ff4d4=7930 8ff4d5=fa18*4 8ff4d9=7ae7 8ff4da=fa1c*2
        8ff4dc=7da0 8ff4dd=7dd6 8ff4de=fa1e 8ff4df=8362 8ff4e0=fa1f 8ff4e1=85b0 8ff4e2=fa20*2
        8ff4e4=8807 8ff4e5=fa22 8ff4e6=8b7f 8ff4e7=8cf4 8ff4e8=8d76 8ff4e9=fa23*3 8ff4ec=90de
        8ff4ed=fa26 8ff4ee=9115 8ff4ef=fa27*2 8ff4f1=9592 8ff4f2=f9dc 8ff4f3=fa29 8ff4f4=973b
        8ff4f5=974d 8ff4f6=9751 8ff4f7=fa2a*3 8ff4fa=999e 8ff4fb=9ad9 8ff4fc=9b72 8ff4fd=fa2d
        8ff4fe=9ed1
    """,
}


def reading(charset: str) -> int:
    """How the charset is read; KeyError for one that is not known."""
    if charset not in _UNITS:
        table(charset)
    return _UNITS.get(charset, TABLE)


def decode(data: bytes, charset: str) -> str:
    """Text of a charset; the sign for unknown letters where it has none."""
    how = reading(charset)
    if how != TABLE:
        codec = {UTF8: "utf-8", UTF16: "utf-16-be", UTF16LE: "utf-16-le", UTF32: "utf-32-be"}
        return data.decode(codec.get(how, "latin-1"), "replace")
    letters, text, at = table(charset), [], 0
    while at < len(data):
        size = _size(data[at:], letters)
        code = data[at : at + size]
        place = _place(code) if len(code) == size else -1
        if place < len(letters):
            letter = int(letters[place]) if place >= 0 else NONE
        else:
            letter = place - _MORE - _BEYOND + 0x10000
        text.append(chr(letter) if 0 <= letter < 0x110000 else "\ufffd")
        at += size
    return "".join(text)


def _size(data: bytes, letters: Any) -> int:
    match int(letters[data[0]]):
        case kind if kind == TWO:
            return 2
        case kind if kind == THREE:
            return 3
        case kind if kind == FOUR:
            return 4 if data[1:2].isdigit() else 2
    return 1


@cache
def table(charset: str) -> Any:
    """Letters by byte: of one byte first, then those of two, then those of three or four."""
    own = _OWN.get(charset, "")
    if charset not in _CODECS and not own:
        raise KeyError(charset)
    codec = _CODECS.get(charset, "ascii")
    ones = np.array([_letter(bytes((b,)), codec) for b in range(256)], np.int32)
    parts = [ones]
    if charset in ("big5", "cp932", "euckr", "gb2312", "gbk", "sjis", "ujis", "eucjpms", "gb18030"):
        pairs = np.full(65536, NONE, np.int32)
        for first in range(0x81, 0xFF):
            found = [_letter(bytes((first, second)), codec) for second in range(256)]
            if ones[first] == NONE and max(found) > NONE:
                pairs[first << 8 : (first << 8) + 256] = found
                ones[first] = FOUR if charset == "gb18030" else TWO
        parts.append(pairs)
    if charset in ("ujis", "eucjpms"):
        ones[0x8F] = THREE
        more = np.full(65536, NONE, np.int32)
        for code in range(0xA1A1, 0xFFFF):
            more[code] = _letter(b"\x8f" + code.to_bytes(2, "big"), codec)
        for row in range(10):  # letters that users define
            own += f" {0xF5 + row:x}a1={0xE000 + 94 * row:x}*94 8f{0xF5 + row:x}a1={0xE3AC + 94 * row:x}*94"
            ones[0xF5 + row] = TWO
        parts.append(more)
    elif charset == "gb18030":
        parts.append(np.array([_letter(_four(n), codec) for n in range(_LINEAR)], np.int32))
        ones[0x81:0xFF] = FOUR
    made = np.concatenate(parts)
    for run in own.split():
        place, _, letters = run.partition("=")
        letter, _, count = letters.partition("*")
        at = _place(bytes.fromhex(place))
        made[at : at + int(count or 1)] = int(letter, 16) + np.arange(int(count or 1))
    if charset == "eucjpms":
        made[0xAD] = TWO
    made.flags.writeable = False
    return made


def _letter(data: bytes, codec: str) -> int:
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        return NONE
    return ord(text) if len(text) == 1 else NONE


def _four(number: int) -> bytes:
    """The four bytes of gb18030 with this number."""
    rest, d = divmod(number, 10)
    rest, c = divmod(rest, 126)
    a, b = divmod(rest, 10)
    return bytes((0x81 + a, 0x30 + b, 0x81 + c, 0x30 + d))


def _place(code: bytes) -> int:
    match len(code):
        case 1:
            return code[0]
        case 2:
            return _PAIRS + int.from_bytes(code, "big")
        case 3:
            return _MORE + int.from_bytes(code[1:], "big")
        case _:
            a, b, c, d = code
            return _MORE + (((a - 0x81) * 10 + b - 0x30) * 126 + c - 0x81) * 10 + d - 0x30
