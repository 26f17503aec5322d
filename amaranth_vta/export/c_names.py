"""C identifiers for tensors, without clashes with reserved or defined names: `c_names`."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Keywords of C up to C23 and of C++, since C++ compilers may include the header.
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for fortran friend goto if inline int long mutable namespace new noexcept not
    not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
    restrict return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using
    virtual void volatile wchar_t while xor xor_eq
"""
# Names defined by the standard headers that network.c includes, and names predefined by compilers.
_DEFINED = re.compile(
    r"u?int(_fast|_least)?\d+_t|u?int(ptr|max)_t|s?size_t|ptrdiff_t|max_align_t|nullptr_t|offsetof"
    r"|NULL|U?INT(_FAST|_LEAST)?(\d+|PTR|MAX)(_\w+)?|[A-Z_]+_(MIN|MAX|WIDTH)|unreachable"
    r"|linux|unix|vax|sun|sgi|hpux|mips|arm|sparc|i386|riscv|AVR|PPC"
)
# Names that the network's file itself defines and uses, besides its functions.
_OWN = re.compile(r"port|result|streams|segments|machine|limits|wrong|(tensor|layout|segment)_\d+")
_NETWORK_NAME = re.compile(r"(?!vta)[a-z][a-z0-9_]*", re.IGNORECASE)


def c_name(name: str) -> str:
    """``name`` with invalid characters of a C identifier replaced by underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def is_network_name(name: str) -> bool:
    """Whether identifiers and files of a network may begin with ``name``."""
    return _NETWORK_NAME.fullmatch(name) is not None


def c_names(names: Sequence[str], declared: str, network: str = "network") -> dict[str, str]:
    """A C identifier for each of ``names``, unique even in upper case.

    No identifier is a keyword, or is defined by a standard header, a compiler, the file of the
    ``network`` or ``declared``, the text of the included headers.
    """
    others = set(re.findall(r"\b(?:vta|VTA)_\w+|(?<=#define )\w+", declared))
    others |= {f"{network}_{function}" for function in ("init", "run", "reset")}
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for number, name in enumerate(names):
        text = c_name(name)
        if not text[:1].isalpha() or _means_something(text, others):
            text = f"tensor_{text}_{number}"
        while text.upper() in taken:
            text += f"_{number}"
        chosen[name] = text
        taken.add(text.upper())
    return chosen


def _means_something(text: str, declared: set[str]) -> bool:
    return (
        text in _KEYWORDS.split()
        or _DEFINED.fullmatch(text) is not None
        or _OWN.fullmatch(text) is not None
        or text in declared
    )
