"""What the page says of flows (``judgement.js``), run by node over random pictures: nothing is good while nothing is copied."""

import json
import random
import shutil
import subprocess
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import pytest

from mm2py.rest.page import page_files
from mm2py.types import State

Picture = dict[str, Any]

PICTURES: Final = 20_000
SCRIPT: Final = """
import { failoverNow, findings, judge, verdict } from "./judgement.js";
let text = "";
for await (const part of process.stdin) text += part;
const said = ([flow, other]) => ({
  of: judge(flow), failover: failoverNow(flow), together: verdict([flow, other]), found: findings([flow]).map((it) => it.kind),
});
console.log(JSON.stringify(JSON.parse(text).map(said)));
"""


def picture(random: random.Random) -> Picture:
    """A flow as ``/flows`` shows it, most of its members as they are where it copies."""

    def often(usual: object, *others: object) -> Any:
        return usual if random.random() < 0.8 else random.choice(others)

    stream = {"engine": "spark", "copied_topics": 0, "held_partitions": 9, "lag_records": None}
    return {
        "flow": "A->B", "source": "A", "target": "B", "since_ms": 0, "records_lost": often(0, 7),
        "engine": "worker",
        "state": often("RUNNING", *{*State, "DISABLED", "DEGRADED", "SUSPENDED", "WAITING"}),
        "topics": often(3, 0), "partitions": often(9, 0), "copied_topics": often(3, 0, None),
        "paused": often([], ["t"]), "held_partitions": often(0, 2, 9), "failed_partitions": often(0, 1),
        "lag_records": often(0, 5, None), "lag_ms": often(0, 5, 90_000, None),
        "records_per_s": often(10.0, 0.0, None), "notes": often([], ["n"]),
        "errors": often([], [{"where": "t-0", "message": "m", "away": False, "command": ""}]),
        "incomplete": often([], ["http://w/"]),
        **often({}, stream),
    }  # fmt: skip


def copies(flow: Picture) -> bool:
    """Whether all of it is known to be copied, or to be on its way."""
    moves = flow["records_per_s"] or (flow["lag_ms"] is not None and flow["lag_ms"] <= 30_000)
    return bool(
        flow["state"] == "RUNNING"
        and min(flow["topics"], flow["partitions"]) > 0
        and flow["copied_topics"] != 0
        and not any(flow[it] for it in ("failed_partitions", "held_partitions", "paused"))
        and not any(flow[it] for it in ("errors", "incomplete", "notes"))
        and flow["lag_records"] is not None
        and (flow["lag_records"] == 0 or moves)
    )


def is_at_work(flow: Picture) -> bool:
    """Whether anything of it is copied."""
    return bool(flow["state"] == "RUNNING" and flow["copied_topics"] != 0 and flow["topics"] > 0)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_nothing_is_good_while_nothing_is_copied(tmp_path: Path) -> None:
    for name in ("judgement.js", "words.js"):
        (tmp_path / name).write_bytes(page_files()[name])
    (tmp_path / "said.js").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="ascii")
    seeded = random.Random(11)
    pairs = [(picture(seeded), picture(seeded)) for _ in range(PICTURES)]
    told = subprocess.run(
        ["node", str(tmp_path / "said.js")],
        input=json.dumps(pairs), capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    wrong = [
        (flow, other, said)
        for (flow, other), said in zip(pairs, json.loads(told), strict=True)
        if not all(holds(flow, other, said))
    ]
    assert wrong == [], wrong[:2]


def holds(flow: Picture, other: Picture, said: Picture) -> list[bool]:
    """Which of the claims hold of a flow, and of it beside another one."""
    kind, ready, both = said["of"]["kind"], said["failover"][0], said["together"]["kind"]
    return [
        (kind == "good") <= copies(flow),
        (kind == "note") <= is_at_work(flow),
        (kind in {"good", "note"}) or bool(said["of"]["text"] and said["of"]["command"]),
        (ready == "good") <= (copies(flow) or copies({**flow, "notes": []})),
        (both == "good") <= all(starmap(good_or_off, ((flow,), (other,)))),
        (both in {"good", "note"}) <= (is_at_work(flow) or is_at_work(other)),
        # What is wrong is named, whatever else is said.
        (flow["records_lost"] > 0) <= ("warn" in said["found"]),
        (kind in {"bad", "warn", "unknown"}) <= (kind in said["found"] or bool(flow["errors"])),
    ]


def good_or_off(flow: Picture) -> bool:
    """Whether a verdict that is good may leave it aside: it copies, notes aside, or is not enabled."""
    return flow["state"] == "DISABLED" or copies({**flow, "notes": []})
