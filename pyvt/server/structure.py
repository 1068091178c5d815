"""What a request says about the form of its text."""

from pyvt.server.errors import request_error
from pyvt.server.openai.schema import GenerationFields


def check_structure(request: GenerationFields) -> None:
    """Check that a request asks for free text.

    Raises:
        WireException: it asks for another form: text that only looks right would be worse.
    """
    form = request.response_format or {"type": "text"}
    for param, is_free in (
        ("response_format", form.get("type") == "text"),
        ("structured_outputs", request.structured_outputs is None),
    ):
        if not is_free:
            raise request_error(
                f"[request] {param}: expected free text, other forms are not supported yet",
                param=param,
                code="unsupported_value",
            )
