"""Options in a TOML file: `name = value` lines without tables, each by its long flag without the dashes."""

import json

from .errors import FormatError, InvalidArgument, near

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}


def read_options(path, rows):
    """{row.name: value} of the options that the file at `path` gives.

    rows: the Options it may give. Raises InvalidArgument for an unknown name or a value of the wrong kind, FormatError
    for what is no TOML, OSError for what can't be read.
    """
    with open(path, "rb") as file:
        try:
            table = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: not a TOML file: {error}") from None
    known = {row.key: row for row in rows}
    found = {}
    for key, value in table.items():
        if key not in known:
            raise InvalidArgument(f"{path}: unknown option {key!r}: {_hint(key, value, known)}")
        row = known[key]
        try:
            found[row.name] = [_converted(row, each) for each in value] if _is_list(row, value) else _converted(row, value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}: {key}: {error}") from None
    return found


def options_text(values, groups, heading):
    """The text of a file that gives `values` ({row.name: value}), below the comment `heading`, in the order of `groups`
    ({title: rows}). A text that TOML can't hold, such as a file's name in no encoding, becomes a comment."""
    lines = [f"# {heading}"]
    for title, rows in groups.items():
        given = [row for row in rows if values.get(row.name) is not None]
        if given:
            lines += ["", f"# {title}"]
        lines += [_line(row.key, values[row.name]) for row in given]
    return "\n".join(lines) + "\n"


def toml_of(value):
    """A bool, int, float, str, or list of them as TOML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # else JSON's text is TOML's
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_of, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _line(key, value):
    text = toml_of(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"# {key} is left out, for it is no Unicode text: {ascii(value)}"
    return f"{key} = {text}"


def _is_list(row, value):
    if row.many and not isinstance(value, list):
        raise InvalidArgument(f"expected a list, got {value!r}")
    return row.many


def _converted(row, value):
    kind = bool if row.switch else row.kind
    if kind not in EXPECTED:  # a function of the option's own, made for the text of a command line
        if isinstance(value, (bool, dict, list)):
            raise InvalidArgument(f"expected a text or a number, got {value!r}")
        return kind(str(value))
    fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    try:
        if fits:
            return kind(value)
    except OverflowError:  # a whole number that is no float
        pass
    raise InvalidArgument(f"expected {EXPECTED[kind]}, got {value!r:.80}")


def _hint(key, value, known):
    if isinstance(value, dict):
        return "options stand by themselves, not in a table"
    long_name = next((name for name, row in known.items() if f"-{key}" in row.flags.split()), None)
    return f"did you mean {long_name!r}?" if long_name else near(key, known) or "--help lists the long names"
