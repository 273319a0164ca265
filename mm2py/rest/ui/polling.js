// Asks the API again and again: at once when the page becomes visible, later and later while there is no answer, never while it is hidden.

// Without the name and password that the address of a page may have: fetch refuses these.
export const API = new URL("../", location.origin + location.pathname);
const ANSWER_MS = 15_000;
const LONG_ANSWER_MS = 60_000;
const LONGEST_MS = 30_000;

export const pathOf = (...segments) => segments.map(encodeURIComponent).join("/");

/** What the worker says that this reader may do; known from its first answer on. */
export const Access = { caller: "", mayChange: false };

export const read = (path, withinMs = ANSWER_MS) => send(path, { headers: {}, signal: AbortSignal.timeout(withinMs) });

// What asks clusters themselves takes longer.
export const ask = (path) => read(path, LONG_ANSWER_MS);

/** Ask for a change; `revision` is the flow's that it is meant for (412 where it is another). */
export function change(method, path, body, revision) {
  const headers = revision === undefined ? {} : { "If-Match": `"${revision}"` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return send(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(LONG_ANSWER_MS) });
}

async function send(path, request) {
  const headers = { Accept: "application/json", "X-Mm2py-Page": "1", ...request.headers };
  const answer = await fetch(new URL(path, API), { ...request, headers, cache: "no-store" });
  const access = answer.headers.get("X-Mm2py-Access");
  if (access) Object.assign(Access, { caller: decodeURIComponent(answer.headers.get("X-Mm2py-User") || ""), mayChange: access === "change" });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = new Error(body?.message || `HTTP ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  return body;
}

function why(error) {
  if (error.status) return `The worker answers ${error.status}: ${error.message}`;
  if (error.name === "TimeoutError") return "No answer in time";
  return "This worker does not answer";
}

/** One path of the API (`slow`: its answer asks clusters): `data` is the last answer, `at` when it came (ms), `error` why there is no newer one. */
export class Poll {
  constructor(path, everyMs, changed, slow) {
    Object.assign(this, { path, everyMs, usualMs: everyMs, changed, slow, data: null, at: null, error: "", status: 0, failures: 0 });
    this.nextAt = null;
    this.running = this.asking = false;
    this.seen = () => (document.hidden ? this.pause() : this.ask());
  }

  start() {
    if (this.running) return;
    this.running = true;
    document.addEventListener("visibilitychange", this.seen);
    this.seen();
  }

  stop() {
    this.running = false;
    document.removeEventListener("visibilitychange", this.seen);
    this.pause();
  }

  pause() {
    clearTimeout(this.timer);
    this.nextAt = null;
  }

  async ask() {
    this.pause();
    if (this.asking || !this.running) return;
    this.asking = true;
    try {
      this.data = await read(this.path, this.slow ? LONG_ANSWER_MS : ANSWER_MS);
      this.at = Date.now();
      this.error = "";
      this.status = this.failures = 0;
    } catch (error) {
      this.error = why(error);
      this.status = error.status || 0;
      this.failures += 1;
    }
    this.asking = false;
    if (!this.running) return;
    // It may ask for another pace, by what was answered.
    this.changed();
    if (!document.hidden) {
      const pauseMs = Math.min(LONGEST_MS, this.everyMs * 2 ** Math.min(this.failures, 8));
      const waitMs = this.failures ? pauseMs : this.everyMs;
      this.nextAt = Date.now() + waitMs;
      this.timer = setTimeout(() => this.ask(), waitMs);
    }
  }

  /** Whether what is shown is older than it should be. */
  get stale() {
    return this.failures > 0 || (this.at !== null && Date.now() - this.at > this.everyMs + (this.slow ? LONG_ANSWER_MS : ANSWER_MS));
  }
}
