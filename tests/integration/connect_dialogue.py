"""The requests of ``tests/data/rest/connect_exchanges.jsonl``, sent to a Connect worker one after the other.

Flow: lines of the file -> ``hold`` -> what the worker answers, without what differs from run to run. A line has the
request (``ask``, ``body`` or ``text``, ``headers``), perhaps ``until`` (asked again until the states, the status or texts
of the answer, joined by ``and``, are there), Java's answer (``java``) and where ours differs ``ours`` with ``because``: a row of
docs/reference/compatibility.md.
"""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import httpx

FILE: Final = Path(__file__).parents[1] / "data" / "rest" / "connect_exchanges.jsonl"
SETTLE_S: Final = 15.0
PAUSE_S: Final = 0.1

Exchange = dict[str, object]
Json = dict[str, object]


def exchanges() -> list[Exchange]:
    """Return the recorded exchanges in their order."""
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def write_exchanges(recorded: Sequence[Exchange]) -> None:
    """Record them anew."""
    lines = (json.dumps(it, ensure_ascii=False) + "\n" for it in recorded)
    FILE.write_text("".join(lines), encoding="utf-8")


async def hold(url: str, replaced: dict[str, str], asked: Sequence[Exchange]) -> list[Json]:
    """Send the requests to the worker at ``url``; return its answers.

    ``replaced`` are the words of the file that stand for names of this run (brokers, topic).
    """
    words = {url.removeprefix("http://").rstrip("/"): "WORKER"}
    words |= {value: word for word, value in replaced.items()}
    async with httpx.AsyncClient(base_url=url, timeout=100) as http:
        root = await http.get("/")
        words[str(cast("Json", root.json())["kafka_cluster_id"])] = "CLUSTER"
        return [await _answer(http, it, replaced, words) for it in asked]


async def _answer(
    http: httpx.AsyncClient, asked: Exchange, replaced: dict[str, str], words: dict[str, str]
) -> Json:
    method, path = str(asked["ask"]).split(" ", 1)
    text = json.dumps(asked["body"]) if "body" in asked else str(asked.get("text", ""))
    for word, value in replaced.items():
        text, path = text.replace(word, value), path.replace(word, value)
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    headers |= cast("dict[str, str]", asked.get("headers", {}))
    deadline = time.monotonic() + SETTLE_S
    while True:
        got = await http.request(method, path, content=text or None, headers=headers)
        # While the group rebalances every change is 409, as clients of Connect know.
        settled = "until" in asked or not (got.status_code == 409 and "rebalanc" in got.text)
        if (settled and _is_there(got, asked.get("until"), words)) or time.monotonic() > deadline:
            return plain(got, words)
        await asyncio.sleep(PAUSE_S)


def _is_there(got: httpx.Response, until: object, words: dict[str, str]) -> bool:
    if until is None:
        return True
    if str(until).isdigit():
        return str(got.status_code).startswith(str(until))
    if '"connector"' in got.text and got.status_code == 200:
        status = cast("dict[str, Json]", got.json())
        tasks = cast("list[Json]", status["tasks"])
        states = " ".join(str(it["state"]) for it in (status["connector"], *tasks))
        return states == until
    compact = _replaced(got.text, words).replace(" ", "")
    return all(text.replace(" ", "") in compact for text in str(until).split(" and "))


def plain(got: httpx.Response, words: dict[str, str]) -> Json:
    """Return status, the header that clients read, and body."""
    answer: Json = {"status": got.status_code}
    if "location" in got.headers:
        answer["location"] = _replaced(got.headers["location"], words)
    if got.request.method == "OPTIONS":
        answer["allow"] = sorted(got.headers.get("allow", "").replace(" ", "").split(","))
        return answer
    if got.content:
        try:
            answer["body"] = _body(json.loads(_replaced(got.text, words)))
        except ValueError:
            answer["body"] = _replaced(got.text, words)
    return answer


def _replaced(text: str, words: dict[str, str]) -> str:
    text = re.sub(r"column: \d+", "column: 0", text)  # depends on the length of this run's names
    for value, word in words.items():
        text = text.replace(value, word)
    return text


def _body(body: object) -> object:
    """Return a body without what differs from run to run, a validation without what is right."""
    if not isinstance(body, dict):
        return body
    found = cast("Json", body)
    if "configs" in found and "error_count" in found:
        return {**found, "configs": _noteworthy(cast("list[Json]", found["configs"]))}
    for name in ("offsets", "tasks"):
        if name in found:
            entries = cast("list[Json]", found[name])
            for entry in entries:
                # Stored beside it by us alone: docs/reference/compatibility.md, "stored position".
                for ours in ("epoch", "topic_id"):
                    cast("Json", entry.get("offset") or {}).pop(ours, None)
            found[name] = sorted(entries, key=lambda it: json.dumps(it, sort_keys=True))
    if found.get("last_modified") is not None:
        return {**found, "last_modified": 0}
    if "commit" in found:
        return {**found, "commit": ""}
    return found


def _noteworthy(entries: list[Json]) -> list[Json]:
    """Return the errors, keys without a definition, and overrides with their definition."""
    kept: list[Json] = []
    for entry in entries:
        key, value = cast("Json | None", entry["definition"]), cast("Json | None", entry["value"])
        name = str((value or key or {}).get("name"))
        if ".override." in name and key is not None:
            key = {it: key[it] for it in ("type", "default_value", "importance", "required")}
            kept.append({"name": name, "definition": key, "value": value})
        elif key is None or (value is not None and value["errors"]):
            kept.append({"name": name, "value": value})
    return kept
