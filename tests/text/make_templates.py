#!/usr/bin/env python3
"""Make templates.json: chat templates in the style of known families, rendered by jinja2 with the settings that
transformers uses (trim_blocks, lstrip_blocks, a sandbox, tojson without escapes for HTML), over several conversations.
Needs jinja2. The templates were written for these tests."""
import json
import os

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))

T = {}
T["smollm2"] = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
T["chatml"] = """{% for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{% endif %}"""
T["llama3"] = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""
T["llama31"] = """{{- bos_token }}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- the first system message is taken out #}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- raise_exception("no tools here") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
T["zephyr"] = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
T["mistral"] = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""
T["mistral-v3"] = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
{{- user_messages | length }}"""
T["llama2"] = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
T["gemma"] = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""
T["gemma3"] = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {{ item['text'] | trim }}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""
T["phi3"] = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""
T["qwen25"] = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
T["qwen3"] = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
T["deepseek"] = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}"""
T["granite"] = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.
You are Granite, developed by IBM." %}
    {%- if tools and documents %}
        {%- set system_message = system_message + " Tools." %}
    {%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>
' }}
{%- if documents %}
    {{- '<|start_of_role|>documents<|end_of_role|>' }}
    {%- for document in documents %}
        {{- 'Document ' + loop.index | string + '\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>
' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
            {%- if controls %}
                {{- ' ' + controls | tojson()}}
            {%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""
T["alpaca"] = """{% for message in messages %}
{% if message.role == 'system' %}
{{ message.content }}

{% elif message.role == 'user' %}
### Instruction:
{{ message.content | trim }}

{% else %}
### Response:
{{ message.content }}{{ eos_token }}

{% endif %}
{% endfor %}
{% if add_generation_prompt %}
### Response:
{% endif %}
"""
T["vicuna"] = """{%- for m in messages -%}
{%- if m.role == 'system' -%}{{ m.content }}{{ ' ' }}
{%- else -%}{{ m.role | upper }}: {{ m.content }}{{ '</s>' if m.role == 'assistant' else ' ' }}
{%- endif -%}
{%- endfor -%}
{{ 'ASSISTANT:' if add_generation_prompt }}"""
T["generation-tag"] = """{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}[{{ m.role }}] {{ m.content }}{% endif %}
{% endfor %}"""

# Small templates, one feature each.
S = {
    "space-1": "a  {%- if true %}  b  {%- endif %}  c\n",
    "space-2": "  {% if true %}\n    x\n  {% endif %}\n  y\n\n",
    "space-3": "a\n  {# note #}\n b {#- note -#}  c {# n #} d",
    "space-4": "{%+ if true %} x {%+ endif +%}\n y",
    "space-5": "x{{- ' y ' -}}   z\r\nw\r",
    "space-6": "  {{ 1 }}\n  {% set a = 2 %}  \n{{ a }}",
    "space-7": "{% if true -%}\n\n  a\n{%- endif +%}\n  {% if true %}b{% endif %}",
    "arith": "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1 + 2 * 3 - 4 }} {{ 1.5 + 1 }} {{ 10 / 4 * 2 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.125 }} {{ -2 ** 2 }}",
    "concat": "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x'] }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' 'b' \"c\" }}",
    "compare": "{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 1 }} {{ [1, 2] == [1, 2] }} {{ none == none }} {{ 'x' != 'y' }} {{ not 1 == 2 }}",
    "in": "{{ 'a' in 'abc' }} {{ 'd' not in 'abc' }} {{ 2 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ '' in '' }} {{ 3 not in (1, 2) }}",
    "logic": "{{ 1 and 0 }} {{ 0 or 'x' }} {{ '' or none }} {{ not '' }} {{ 1 if 0 else 2 if 0 else 3 }} {{ 'z' if false }}|",
    "index": "{{ 'hällo'[1] }} {{ [1, 2, 3][-1] }} {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][5:] }} {{ 'abc'[-2:] }} {{ [1, 2, 3][2:0:-1] }} {{ 'añb'[1:] }} {{ {'a': {'b': 5}}.a['b'] }} {{ [1, 2].0 }}",
    "repr": "{{ [1, 'a', \"it's\", none, true, 1.0, [2]] }} {{ {'a': 1, 'b': ['x']} }} {{ (1, 2) }} {{ (1,) }} {{ ['a\\nb', 'q\"q\\'q', '\\\\'] }} {{ [] }} {{ {} }} {{ () }}",
    "json": "{{ {'a': [1, 2.5, none, true, 'é\"\\n'], 'b': {}} | tojson }} {{ [1, {'x': []}] | tojson(indent=2) }} {{ 'a/b<c>&' | tojson }} {{ [] | tojson(indent=4) }}",
    "filters": "{{ ' a b ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'aB' | upper }}|{{ 'aB' | lower }}|{{ 'hello wORLD foo-bar' | title }}|{{ 'hELLO' | capitalize }}|{{ [1, 2] | length }}|{{ 'héé' | length }}|{{ [1, 2] | join(', ') }}|{{ ['a', 'b'] | first }}|{{ ['a', 'b'] | last }}|{{ nope | default('d') }}|{{ '' | default('e', true) }}|{{ 'a-b-a' | replace('a', 'cc') }}|{{ 'abc' | list }}|{{ {'a': 1} | items | list }}|{{ 5 | string + 'x' }}|{{ '12' | int + 1 }}|{{ 'z' | int }}|{{ -3 | abs }}|{{ [1, 2, 3] | reverse | list }}|{{ 3.9 | int }}|{{ 'aaa' | replace('a', 'b', 2) }}",
    "attr-filters": "{{ messages | map(attribute='role') | join(',') }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|{{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }}|{{ ['a', 'B'] | map('upper') | join }}|{{ [1, 2, 3, 4] | select('odd') | list }}|{{ [0, 1, ''] | reject | list }}|{{ messages | selectattr('content') | list | length }}|{{ messages | map(attribute='none', default='n') | join }}",
    "methods": "{{ '  x '.strip() }}|{{ 'xxay'.lstrip('x') }}|{{ 'ayy'.rstrip('y') }}|{{ 'a,b,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'ab'.upper() }}|{{ 'AB'.lower() }}|{{ \"they're bill's\".title() }}|{{ 'aXa'.replace('a', 'b') }}|{{ {'a': 1}.keys() | list }}|{{ {'a': 1}.get('a') }}|{{ {'a': 1}.get('b', 7) }}|{{ {'a': 1}.get('b') }}|{{ ','.join(['x', 'y']) }}|{{ 'héllo'.find('l') }}|{{ 'abc'.replace('', '-') }}|{{ 'hELLO'.capitalize() }}|{{ 'a  b c'.split(none, 1) }}|{{ ''.split(',') }}|{{ ''.split() }}",
    "tests": "{{ 1 is defined }} {{ q is defined }} {{ q is undefined }} {{ none is none }} {{ 'a' is string }} {{ 1 is number }} {{ {} is mapping }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 3 is odd }} {{ 4 is even }} {{ 3 is equalto 3 }} {{ 3 is not equalto(4) }} {{ 9 is divisibleby 3 }} {{ true is boolean }} {{ 1.5 is float }} {{ 1 is integer }} {{ 1 is in [1, 2] }} {{ [] is sequence }} {{ range is callable }} {{ not q is defined and 1 is odd }} {{ 'x' is string and 'y' is string }}",
    "loop": "{% for x in [10, 20, 30] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem | default('-') }}{{ loop.nextitem | default('-') }};{% endfor %}",
    "loop-2": "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }},{% endfor %}{% for x in [] %}no{% else %}empty{% endfor %}{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ loop.index }}:{{ x }} {% endfor %}{% for c in 'añ' %}[{{ c }}]{% endfor %}{% for k in {'z': 1} %}{{ k }}{% endfor %}{% for x in nothing %}{% endfor %}{% for (a, b) in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}",
    "loop-3": "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in range(2, 10, 3) %}{{ i }}{% endfor %} {% for i in range(3, 0, -1) %}{{ i }}{% endfor %}",
    "loop-nested": "{% for a in [1, 2] %}{% for b in ['x', 'y'] %}{{ loop.index }}{{ a }}{{ b }} {% endfor %}{{ loop.index }};{% endfor %}",
    "scope": "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% set ns = namespace(n=0) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "set-block": "{% set x %}[{{ 1 + 1 }}]{% endset %}{{ x }}{{ x | length }}",
    "macro": "{% macro f(a, b='d') %}<{{ a }}:{{ b }}>{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{% macro g(n) %}{% if n > 0 %}{{ n }}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(3) }}{{ f() }}",
    "escapes": "{{ 'a\\tb\\x41\\u00e9\\'\\\"\\\\ \\q' }}{{ \"it's\" }}{{ 'say \"x\"' }}",
    "undefined": "[{{ nope }}][{{ messages[0].nope }}][{{ nope | default }}]{% if nope %}x{% endif %}{{ nope is defined }}",
    "range-namespace": "{{ range(3) | list }}{{ dict(a=1, b=2) }}{{ namespace(a=3).a }}",
    "elif": "{% for i in [1, 2, 3] %}{% if i == 1 %}one{% elif i == 2 %}two{% else %}many{% endif %}{% endfor %}",
    "braces": "{{ {'a': {'b': {}}}['a'] }} } }} { %} {'x'}",
    "precedence": "{{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ -1 | abs }} {{ 2 + 3 * 4 ** 2 }} {{ 1 ~ 2 * 3 }} {{ not true or true }} {{ 'a' if true and not false else 'b' }} {{ 10 - 3 - 2 }} {{ 'x' in ['x'] and 'y' not in ['x'] }}",
    "unicode": "{{ 'ÄÖ' | lower }} {{ 'éa' | upper }} {{ 'привет мир' | title }} {{ '　x　' | trim }} 日本 {{ '日本語'[1] }}",
}

ERRORS = {
    "raise": "{{ raise_exception('Bad ' ~ 'role') }}",
    "attribute-of-undefined": "a\n{{ nope.x }}",
    "type": "{{ 'a' + 1 }}",
    "zero": "{{ 1 // 0 }}",
    "index-of-undefined": "{{ messages[99].role }}",
}

CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "You are  terse.\n"), ("user", " What is 2+2? "), ("assistant", "4"), ("user", "Why?\n\n")],
    [("user", "Hi <b>&\"'"), ("assistant", "<think>\nhm\n</think>\n\nÜber 日本 😀"), ("user", "ok")],
    [("user", "a"), ("assistant", "<think>x</think>y")],
    [("assistant", "first"), ("user", "")],
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def main():
    env = environment()
    cases = []
    for group, templates in (("family", T), ("feature", S), ("error", ERRORS)):
        for name, source in templates.items():
            for c, conversation in enumerate(CONVERSATIONS if group == "family" else CONVERSATIONS[1:2]):
                for prompt in (False, True) if group == "family" else (False,):
                    messages = [{"role": r, "content": t} for r, t in conversation]
                    case = {"name": f"{name}/{c}/{int(prompt)}", "template": source, "messages": messages, "prompt": prompt}
                    try:
                        case["text"] = env.from_string(source).render(
                            messages=messages, add_generation_prompt=prompt, tools=None, documents=None,
                            bos_token="<s>", eos_token="</s>")
                    except jinja2.exceptions.TemplateSyntaxError:
                        raise
                    except Exception as e:
                        case["error"] = str(e)
                    cases.append(case)
    with open(os.path.join(HERE, "templates.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f, ensure_ascii=False, indent=0)
        f.write("\n")
    print(len(cases), "cases,", sum("error" in c for c in cases), "errors:", sorted({c["name"].split("/")[0] for c in cases if "error" in c}))


if __name__ == "__main__":
    main()
