"""Conversations and templates that templates and tokenizers are tested with.

The templates are our own, in the manner of the families they are named after: together they use
what real ones use (namespaces, macros, loop controls, slices, ``tojson``, ``{% generation %}``,
whitespace control, exceptions, dates left out).
"""

from datetime import datetime, tzinfo
from typing import Any

Chat = dict[str, Any]

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a city: "now" & <soon>, 5 °C',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "e.g. Zürich, 東京"},
                "days": {"type": "integer", "default": 1},
            },
            "required": ["city"],
        },
    },
}

_CALL = {
    "type": "function",
    "id": "call_0",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}},
}
_CALL_2 = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "get_weather", "arguments": {"city": '"東京"', "tags": ["a", None, True]}},
}

# Every entry: messages, and what else goes to render().
CONVERSATIONS: dict[str, Chat] = {
    "one_turn": {"messages": [{"role": "user", "content": "Hello"}]},
    "system": {
        "messages": [
            {"role": "system", "content": "You are terse."},
            {"role": "user", "content": "\nHello, wörld! "},
        ]
    },
    "turns": {
        "messages": [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "and 2 < 3 && 4 > 1?"},
        ]
    },
    "no_generation_prompt": {
        "messages": [
            {"role": "user", "content": "Say hi"},
            {"role": "assistant", "content": "  hi \n"},
        ],
        "add_generation_prompt": False,
    },
    "thinking_off": {
        "messages": [{"role": "user", "content": "Hello"}],
        "enable_thinking": False,
    },
    "thinking_on": {
        "messages": [{"role": "user", "content": "Hello"}],
        "enable_thinking": True,
    },
    "reasoning_in_content": {
        "messages": [
            {"role": "user", "content": "Prime?"},
            {"role": "assistant", "content": "<think>\n7 is odd.\n</think>\n\nYes."},
            {"role": "user", "content": "Sure?"},
        ]
    },
    "reasoning_last": {
        "messages": [
            {"role": "user", "content": "Prime?"},
            {"role": "assistant", "content": "<think>\n\n7 is odd.\nSo.\n</think>\n\nYes.\n"},
        ],
        "add_generation_prompt": False,
    },
    "reasoning_field": {
        "messages": [
            {"role": "user", "content": "Prime?"},
            {"role": "assistant", "content": "Yes.", "reasoning_content": "\n7 is odd.\n"},
        ],
        "add_generation_prompt": False,
    },
    "tools": {
        "messages": [{"role": "user", "content": "Weather in Zürich?"}],
        "tools": [WEATHER_TOOL],
    },
    "tool_calls": {
        "messages": [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Weather in Zürich and 東京?"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "name": "get_weather", "content": '{"c": 5, "s": "<b>\\n"}'},
            {"role": "assistant", "content": "And 東京:", "tool_calls": [_CALL_2]},
            {"role": "tool", "name": "get_weather", "content": "15 °C 🌧️"},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [WEATHER_TOOL],
    },
    "scripts": {
        "messages": [
            {"role": "user", "content": "नमस्ते 👩‍👩‍👧 e\u0301 ﷽ \ufdd0\ufffe\u200b漢字\u3000かな"},
            {"role": "assistant", "content": "```py\n\tx = {'a': [1, 2]}\n```\r\n\r\n"},
            {"role": "user", "content": "   "},
        ]
    },
    "long_words": {
        "messages": [
            {"role": "user", "content": "don't  DON'T\t12345 …" * 40},
            {"role": "assistant", "content": "ok\n" * 30},
            {"role": "user", "content": "<html><b>x</b></html>"},
        ]
    },
}


class StoppedClock(datetime):
    """Stands in for ``datetime`` where templates print the date."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "StoppedClock":
        """Return the same moment, always."""
        return cls(2025, 3, 9, 7, 5, 1, tzinfo=tz)


_CHATML = """\
{% for message in messages %}
    {%- if loop.first and message['role'] != 'system' -%}
        {{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] | trim ~ '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant' }}
{% endif %}
"""

_LLAMA3 = """\
{{- bos_token }}
{%- set date = date if date is defined else "26 Jul 2024" %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " ~ date ~ "\\n\\n" }}
{%- if tools is not none %}
    {{- "Functions:\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}{{ call.arguments | tojson }}{{ "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {% generation %}
        {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

_XML_TOOLS = """\
{%- macro text_of(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type != 'text' %}{% continue %}{% endif %}
            {{- part.text }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}{{ raise_exception('no messages') }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}
        {%- set f = tool.function %}
        {{- '\\n<function>\\n<name>' ~ f.name ~ '</name>' }}
        {%- for name, field in f.parameters.properties | items %}
            {{- '\\n<parameter name="' ~ name ~ '">' }}
            {%- for key in field.keys() | reject('in', ['type', 'description']) %}
                {{- '\\n<' ~ key ~ '>' ~ (field[key] | tojson) ~ '</' ~ key ~ '>' }}
            {%- endfor %}
            {{- '</parameter>' }}
        {%- endfor %}
        {{- '\\n</function>' }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = text_of(message.content) | trim %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content | trim %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1] | trim %}
            {%- set content = content.split('</think>')[-1] | trim %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n<function=' + tool_call.function.name + '>\\n' }}
            {%- for name, value in tool_call.function.arguments | items %}
                {%- set value = value if value is string else value | tojson %}
                {{- '<parameter=' ~ name ~ '>\\n' ~ value ~ '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '<think>\\n' }}
{%- endif %}
"""

_INST = """\
{%- if messages[0]['role'] == 'system' -%}
    {%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate user/assistant') }}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() }}
        {{- ' [/INST]' }}
    {%- else -%}
        {{ ' ' + message['content'].strip() + ' ' + eos_token }}
    {%- endif -%}
{%- endfor -%}
"""

TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "llama3": _LLAMA3,
    "xml_tools": _XML_TOOLS,
    "inst": _INST,
}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
