"""Jobs on the page: a real one of each kind is seen with how far it is and how it ended; what copies history is in test_backfill_rest."""

import asyncio
from urllib.parse import quote

import pytest

from tests.integration.mirror_process import Flow, Mirror, command_here, running
from tests.integration.page_stage import MARKS, SHOTS, assert_quiet
from tests.integration.rest_asking import public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, wait_for_copy, write
from tests.kit.browser import Browser
from tests.spark.backfill_process import END_WITHIN_S
from tests.spark.test_stream import ON_SPARK, stream_of

pytestmark = [*MARKS, pytest.mark.spark, pytest.mark.integration]


def jobs_of(mirror: Mirror, flow: Flow) -> str:
    return f"{public_url(mirror)}ui/#/flows/{quote(flow.name, safe='')}/jobs"


def job(kind: str) -> str:
    """An expression: what a reader sees of the newest job of a kind, in one line; empty where there is none."""
    found = f"document.querySelector('section.detail[aria-label^=\"{kind} \"]')"
    return f"({found}?.innerText || '').replace(/\\s+/g, ' ')"


async def sees(browser: Browser, kind: str, *texts: str) -> None:
    await browser.until(" && ".join(f"{job(kind)}.includes({it!r})" for it in texts), END_WITHIN_S)


async def ran(code: int, *words: object) -> None:
    """Run a command of a job to its end, beside the browser."""
    ended = await asyncio.to_thread(command_here, "job", *map(str, words))
    assert ended.exit_code == code, ended.output


@pytest.mark.faults
@pytest.mark.usefixtures("lanes_session")
async def test_verify_archive_and_rerun_are_seen_as_they_run_and_with_their_result(
    browser: Browser, setup: Setup
) -> None:
    topic = setup.topic("page-jobs", 2)
    flow = setup.flow(topic)
    write(setup.a, topic, [Sent(n % 2, b"." * 2_000) for n in range(40)])
    of_flow = (flow.file, "--flow", flow.name)
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        await browser.look(width=1280, height=900, dark=False)
        await browser.open(jobs_of(mirror, flow))
        await browser.until_text("No job of this flow was run.")
        slow = asyncio.create_task(ran(0, "verify", "run", *of_flow, "--rate-limit", "8000"))
        await sees(browser, "verify", "RUNNING", "of 80 offsets", "its end is")
        assert await browser.evaluate("document.querySelector('progress').value < 100")
        await browser.screenshot(SHOTS / "jobs-running.png")
        await slow
        await sees(browser, "verify", "EQUAL", "40 records the same on both sides, 0 differences")
        await sees(browser, "verify", "100 %: 80 of 80 offsets", "0 partitions not compared")
        write(setup.b, flow.remote(topic), [Sent(0, b"of another writer")])
        await ran(4, "verify", "run", *of_flow)
        await sees(browser, "verify", "NOT EQUAL", "1 difference")
        await ran(0, "archive", "run", *of_flow, "--to", setup.folder / "archive")
        await sees(
            browser, "archive", "DONE", "100 %: 40 of 40 offsets", "40 records in", "archive"
        )
        again = setup.unique("again")
        await ran(0, "rerun", "run", *of_flow, "--topic", topic, "--into", again)
        await sees(browser, "rerun", "DONE", "100 %: 40 of 40 offsets", f"to {again}")
        await ran(1, "rerun", "run", *of_flow, "--topic", topic, "--into", again)
        await sees(browser, "rerun", "FAILED", "is not empty")
        await browser.screenshot(SHOTS / "jobs.png")
        assert_quiet(browser, public_url(mirror))


@pytest.mark.faults
async def test_a_stream_is_seen_with_its_rate_and_its_lag(browser: Browser, setup: Setup) -> None:
    topic = setup.topic("page-stream", 2)
    flow = setup.flow(topic, ON_SPARK)
    with running(flow.file, ready=False) as mirror:
        await browser.look(width=1280, height=900, dark=False)
        await browser.open(jobs_of(mirror, flow))
        await browser.until_text("A stream on Spark is to copy this flow, and none was begun")
        with stream_of(flow) as stream:
            await sees(browser, "stream", "RUNNING", "Partitions: 2 copying.")
            write(setup.a, topic, [Sent(n % 2, b"%d" % n) for n in range(400)])
            await sees(browser, "stream", "400 offsets copied", "0 offsets behind", "offsets/s")
            await browser.screenshot(SHOTS / "jobs-stream.png")
            assert stream.stop() == 0, stream.tail()
        await sees(browser, "stream", "DONE")
        assert_quiet(browser, public_url(mirror))
