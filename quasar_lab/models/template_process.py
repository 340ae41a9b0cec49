"""Renders one chat template in a process of its own: reads a request on stdin, writes the answer to stdout, as JSON.

This file is run as a script by `chat_template.render`, which explains why. It imports nothing of the package, so that
the process starts quickly and stays small. It limits itself before it looks at the template.

The names that a template finds (`raise_exception`, `strftime_now`, the filter `tojson`, `{% generation %}`,
`{% break %}`) are those that `transformers` gives it.
"""

import json
import sys
from datetime import datetime
from typing import Any

FAULTS = (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""What a template that fails raises, beside jinja's own errors."""


def limit(memory: int, seconds: int) -> None:
    """Takes bounds that this process cannot exceed: bytes of memory, seconds of computing. Where the system has no such
    bounds, the caller's clock is what is left."""
    try:
        import resource
    except ImportError:
        return
    for bound, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
        hard = resource.getrlimit(bound)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(bound, (most, hard))


def environment() -> Any:
    """jinja's sandbox as chat templates expect it."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks what a model is trained on; here it shows its content."""

        tags = {"generation"}  # noqa: RUF012 (jinja's way)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def rendered(template: str, values: dict[str, Any], longest: int) -> dict[str, str]:
    """{"text": …}, or {"error": why not}."""
    from jinja2 import TemplateError

    try:
        text = environment().from_string(template).render(**values)
    except MemoryError:
        return {"error": "it needs too much memory"}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except (TemplateError, *FAULTS) as error:
        return {"error": str(error) or type(error).__name__}
    if len(text) > longest:
        return {"error": f"its text has {len(text)} characters; accepted: at most {longest}"}
    return {"text": text}


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    limit(request["memory"], request["seconds"])
    answer = rendered(request["template"], request["values"], request["longest"])
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
