# SPDX-License-Identifier: Apache-2.0
"""A measuring HTTP client for streaming OpenAI-compatible servers, and the definitions of what it measures.

sse      bytes of an event stream -> payloads, whatever the reads' boundaries
metrics  chunks and their times -> TTFT, TPOT, chunk gaps; the only place where these are defined
framing  response head and body framing of HTTP/1.1
reply    one streaming request and its answer, from bytes and their times; does no I/O
client   one request over asyncio, lean enough to share two cores with the server
"""
