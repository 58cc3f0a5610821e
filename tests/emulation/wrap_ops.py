"""The ops of ops.h as work on emulated lanes, written as C++: wrap_ops.py OPS_H > OPS_CPP

Every function whose first parameter is a lane becomes one that enqueues the CPU backend's; one that returns a value
is a question to the host and is answered at once. What can't be enqueued (a reference that it would write to) or
can't be read is an error, so a new op needs nothing here.
"""

import re
import sys
from pathlib import Path

HEAD = """// Written by wrap_ops.py from ops.h.
#include "llmc/ops.h"
#include "lane_work.h"

namespace llmc {
"""


def declarations(text):
    """(template?, return type, name, [parameter types]) of every op."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^#[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.search(r"namespace llmc \{(.*)\}", text, re.DOTALL)[1]
    text = re.sub(r"\{[^{}]*\}", "", text)
    for statement in text.split(";"):
        if not re.search(r"\bLane\b", statement):
            continue
        read = re.fullmatch(r"\s*(template <class X>)?\s*([\w:]+)\s+(\w+)\(\s*Lane &\s*\w*((?:,[^,()]+)*)\)\s*", statement)
        if not read:
            raise SystemExit(f"wrap_ops.py can't read this declaration: {' '.join(statement.split())}")
        template, returns, name, rest = read.groups()
        yield bool(template), returns, name, [parameter_type(p, name) for p in rest.split(",")[1:]]


def parameter_type(parameter, op):
    words = " ".join(parameter.split())
    if "=" in words:
        raise SystemExit(f"wrap_ops.py: a parameter of {op} has a default: {words}")
    named = re.fullmatch(r"(.*[\w>*&])\s*(?<!\w)(\w+)", words)
    kind = named[1] if named and named[1] != "const" else words
    if "&" in kind and not kind.startswith("const "):
        raise SystemExit(f"wrap_ops.py: {op} would write to a reference after it has returned: {words}")
    return kind


def wrapped(template, returns, name, types):
    before, of = ("template <class X>\n", "<X>") if template else ("", "")
    listed = "".join(f", {kind} a{i}" for i, kind in enumerate(types))
    call = f"{name}{of}(cpu{''.join(f', a{i}' for i in range(len(types)))})"
    body = f'enqueue(lane, "{name}", [=](Lane &cpu) {{ {call}; }});'
    if returns != "void":
        body = f"(void)lane;\n    Lane cpu;\n    return {call};"
    # An op of the CPU that isn't there is then missed when the library is linked.
    yield f"{before}{returns} {name}(Lane &{listed});\n{before}{returns} {name}(StreamLane &lane{listed}) {{\n    {body}\n}}\n"
    if template:
        floats = "".join(", " + re.sub(r"\bX\b", "float", kind) for kind in types)
        yield f"template {returns} {name}<float>(StreamLane &{floats});\n"


def main(header):
    ops = list(declarations(Path(header).read_text()))
    print(HEAD, *(text for op in ops for text in wrapped(*op)), "}  // namespace llmc", sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
