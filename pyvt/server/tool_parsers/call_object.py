"""One JSON object that names a function and its arguments, read character by character."""

from collections.abc import Callable

from pyvt.server.plain_json import loaded

NAME_KEY = "name"
ARGUMENT_KEYS = ("arguments", "parameters")

_SPACE = " \t\r\n"


class CallObject:
    """Reads ``{"name": "f", "arguments": {…}}``; other keys are skipped.

    The arguments are given out as they are written. Arguments that are a string of JSON are given
    as that JSON.

    Attributes:
        name: the function's name once it was read.
        is_done: the object has ended.
        is_broken: this is no such object; a broken object reads nothing more.
        is_told: whether the client was told of the call, for the parser that reads it to set.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._raw: list[str] = []
        self.is_done = False
        self.is_broken = False
        self.is_told = False
        self.has_arguments = False
        self._step: Callable[[str], None] = self._before
        self._text: list[str] = []
        self._key = ""
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        self._ready: list[str] = []
        self._is_bare = False

    @classmethod
    def of_arguments(cls, name: str) -> "CallObject":
        """Return a reader of arguments alone, whose function is known."""
        call = cls()
        call.name, call._key, call._step = name, ARGUMENT_KEYS[0], call._value
        call._is_bare = True
        return call

    @property
    def has_begun_arguments(self) -> bool:
        """Whether some of the arguments were read, or there are none."""
        return self.is_done or self.has_arguments or bool(self._ready)

    @property
    def is_in_arguments(self) -> bool:
        """Whether the client was told of the call, and not yet all of its arguments."""
        return self.is_told and not self.has_arguments

    def read(self, text: str) -> int:
        """Read a text up to the end of the object; return how many characters were read."""
        for num_read, char in enumerate(text):
            if self.is_done or self.is_broken:
                return num_read
            self._raw.append(char)
            self._step(char)
        return len(text)

    @property
    def raw(self) -> str:
        """Everything that was read."""
        return "".join(self._raw)

    def take_arguments(self) -> str:
        """Return the text of the arguments that is new since the last call."""
        taken = "".join(self._ready)
        self._ready.clear()
        return taken

    def _before(self, char: str) -> None:
        if char == "{":
            self._step = self._first_key
        elif char not in _SPACE:
            self.is_broken = True

    def _first_key(self, char: str) -> None:
        if char == "}":
            self._end()
        else:
            self._next_key(char)

    def _next_key(self, char: str) -> None:
        if char == '"':
            self._text = [char]
            self._is_escaped = False
            self._step = self._in_key
        elif char not in _SPACE:
            self.is_broken = True

    def _in_key(self, char: str) -> None:
        self._text.append(char)
        if self._ends_string(char):
            key = _loaded("".join(self._text))
            self.is_broken = not isinstance(key, str)
            self._key = str(key)
            self._step = self._colon

    def _colon(self, char: str) -> None:
        if char == ":":
            self._step = self._value
        elif char not in _SPACE:
            self.is_broken = True

    def _value(self, char: str) -> None:
        if char in _SPACE:
            return
        if char in ",}]:":
            self.is_broken = True
            return
        self._text = []
        self._depth = 0
        self._is_string = self._is_escaped = False
        self._step = self._in_value
        self._in_value(char)

    def _in_value(self, char: str) -> None:
        is_plain = not self._is_string and self._depth == 0
        if is_plain and self._text and char in ",} \t\r\n":
            self._end_value()
            if not self.is_broken:
                self._after_value(char)
            return
        self._text.append(char)
        if self._is_streamed:
            self._ready.append(char)
        if self._is_string:
            self._is_string = not self._ends_string(char)
        elif char == '"':
            self._is_string = True
        elif char in "{[":
            self._depth += 1
            return
        elif char in "}]":
            self._depth -= 1
        if not self._is_string and self._depth == 0 and self._text[0] in '"{[':
            self._end_value()

    @property
    def _is_streamed(self) -> bool:
        is_arguments = self._key in ARGUMENT_KEYS and not self.has_arguments
        return is_arguments and self._text[0] == "{"

    def _end_value(self) -> None:
        self._step = self._after_value
        if self._key == NAME_KEY and self.name is None:
            name = _loaded("".join(self._text))
            if not isinstance(name, str) or not name:
                self.is_broken = True
                return
            self.name = name
        elif self._key in ARGUMENT_KEYS and not self.has_arguments:
            if self._text[0] != "{":
                self._ready.append(_as_object("".join(self._text)))
            self.has_arguments = True
            self.is_done = self._is_bare

    def _after_value(self, char: str) -> None:
        if char == ",":
            self._step = self._next_key
        elif char == "}":
            self._end()
        elif char not in _SPACE:
            self.is_broken = True

    def _end(self) -> None:
        if self.name is None:
            self.is_broken = True
            return
        if not self.has_arguments:
            self._ready.append("{}")
        self.is_done = True

    def _ends_string(self, char: str) -> bool:
        if self._is_escaped:
            self._is_escaped = False
            return False
        self._is_escaped = char == "\\"
        return char == '"'


def _loaded(text: str) -> object:
    """Return the value of JSON text, None where it is none."""
    try:
        return loaded(text, is_strict=False)
    except ValueError:
        return None


def _as_object(text: str) -> str:
    """Return arguments that are no object: JSON inside of a string is taken out, null is empty."""
    value = _loaded(text)
    if value is None and text == "null":
        return "{}"
    if isinstance(value, str) and isinstance(_loaded(value), dict):
        return value
    return text
