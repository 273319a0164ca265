// Where the page is (its address), what it asks the worker for, and when it draws.
import { Api } from "./api.js";
import { FlowPage, PARTS } from "./flow.js";
import { ChangeDialog } from "./changing.js";
import { Overview } from "./overview.js";
import { isLarge, OFTEN_MS, pace, RARELY_MS, SELDOM_MS } from "./pace.js";
import { Access, API, pathOf, Poll } from "./polling.js";
import { Empty } from "./parts.js";
import { html, render } from "./view.js";
import { age, time } from "./words.js";

// Groups are read from the clusters themselves, by connections of their own.
const EVERY_MS = { flow: OFTEN_MS, samples: SELDOM_MS, topics: OFTEN_MS, partitions: OFTEN_MS, groups: RARELY_MS, config: SELDOM_MS, history: SELDOM_MS };

const root = document.getElementById("page");
const narrow = matchMedia("(max-width: 700px)");
const polls = new Map();
// The place that is polled for. The address is ahead of it until the browser has told of its change.
let place;
let waiting = false;

function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    try {
      render(html`<${Page} />`, root);
    } catch (error) {
      fail(error);
    }
  });
}

// A defect of this page must not leave former numbers, which may be green.
function fail(error) {
  for (const poll of polls.values()) poll.stop();
  const text = document.createElement("p");
  text.className = "empty";
  text.setAttribute("role", "alert");
  text.textContent = `This page failed: ${error}. Load it again; the same numbers: mm2py flow list. Please report it.`;
  document.body.replaceChildren(text);
  console.error(error);
}

/** `#/flows/{flow}/{part}/{chosen}`, each segment encoded; anything else is the overview, which names what is `unknown`. */
function route() {
  const [view, flow, part, chosen] = location.hash.replace(/^#\//, "").split("/").map((segment) => {
    try {
      return decodeURIComponent(segment);
    } catch {
      return segment;
    }
  });
  if (view === "api") return { view };
  if (view !== "flows" || !flow) return { view: "overview", unknown: view && view !== "flows" ? location.hash : undefined };
  const known = Object.hasOwn(PARTS, part || "topics");
  return { view: "flow", flow, part: (known && part) || "topics", unknown: known ? undefined : part, chosen: chosen || undefined };
}

/** The paths that the place needs, by the name under which its view finds them. */
function wanted({ view, flow, part, chosen }) {
  if (view === "api") return { api: ["openapi.json", RARELY_MS * 10] };
  if (view === "overview") return { flows: ["flows", OFTEN_MS] };
  const base = pathOf("flows", flow);
  if (polls.get(base)?.status === 404) return { flow: [base, EVERY_MS.flow], flows: ["flows", OFTEN_MS] };
  const shared = {
    flow: [base, EVERY_MS.flow],
    samples: [`${base}/samples`, EVERY_MS.samples],
    forecast: [`${base}/forecast`, SELDOM_MS],
  };
  const job = (kind, ...more) => pathOf("jobs", kind, flow, ...more);
  if (part === "failover") return { ...shared, plan: [job("failover", "plan"), RARELY_MS, true], failover: [job("failover"), SELDOM_MS, true], failback: [job("failback"), SELDOM_MS, true] };
  if (part === "ledger") return { ...shared, ledger: [`${base}/ledger`, RARELY_MS, true], failover: [job("failover"), RARELY_MS, true] };
  const paths = { ...shared };
  if (part === "jobs") paths.jobs = [`jobs?flow=${encodeURIComponent(flow)}`, OFTEN_MS];
  else if (part !== "tasks") paths[part] = [`${base}/${part}`, EVERY_MS[part]];
  if (part === "groups" && chosen !== undefined) paths.groups = [`${base}/groups`, SELDOM_MS];
  if (part === "topics") paths.config = [`${base}/config`, EVERY_MS.config];
  if (part === "topics" && chosen !== undefined) paths.partitions = [`${base}/partitions?topic=${encodeURIComponent(chosen)}`, EVERY_MS.partitions];
  return paths;
}

function changed() {
  follow();
  const large = [...polls.values()].some((poll) => isLarge(poll.data));
  for (const poll of polls.values()) poll.everyMs = pace({ path: poll.path, data: poll.data, usualMs: poll.usualMs, large });
  draw();
}

/** Ask for what the place needs, and for nothing else; what was answered may say what that is. */
function follow() {
  const paths = wanted(place);
  for (const [path, poll] of polls) {
    if (!Object.values(paths).some(([kept]) => kept === path)) {
      poll.stop();
      polls.delete(path);
    }
  }
  for (const [path, everyMs, slow] of Object.values(paths)) {
    if (polls.has(path)) polls.get(path).usualMs = everyMs;
    else {
      const poll = new Poll(path, everyMs, changed, slow);
      polls.set(path, poll);
      poll.start();
    }
  }
}

function go() {
  place = route();
  changed();
}

function Freshness({ poll }) {
  const { at, error, stale, nextAt } = poll;
  const now = Date.now();
  if (!stale) return html`<p class="freshness">${at ? html`as of ${time(at)}` : "asking the worker"}</p>`;
  const next = nextAt ? `Asked again in ${Math.max(0, Math.ceil((nextAt - now) / 1000))} s` : "Asking again";
  const old = at ? `The numbers below are ${age(now - at)} old, from ${time(at)}.` : "There are no numbers yet.";
  return html`<div class="freshness away" role="alert"><p><strong>${error || "Asking the worker"}.</strong> ${old}</p>
    <p>${next}; <button type="button" onClick=${() => poll.ask()}>now</button>. The worker's log and <code>mm2py flow list</code> on its machine tell more.</p></div>`;
}

function Page() {
  const found = Object.fromEntries(Object.entries(wanted(place)).map(([name, [path]]) => [name, polls.get(path)]));
  const main = found.flows || found.flow || found.api;
  document.title = place.view === "flow" ? `${place.flow} - mm2py` : "mm2py";
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the numbers</a>
    <header><a class="brand" href="#/">mm2py</a> <span class="muted">worker ${API.host}${Access.caller ? `, as ${Access.caller}${Access.mayChange ? "" : " (may only read)"}` : ""}</span> <a href="#/api">API</a> <${Freshness} poll=${main} /></header>
    <main id="main" tabindex="-1" class=${main.stale ? "stale" : ""}>
      <${VIEWS[place.view]} place=${place} found=${found} main=${main} />
    </main>
    <${ChangeDialog} after=${askAgain} />`;
}

const VIEWS = {
  flow: ({ place, found, main }) => html`<${FlowPage} key=${place.flow} name=${place.flow} part=${place.part} unknown=${place.unknown} chosen=${place.chosen} polls=${found} stale=${main.stale} narrow=${narrow.matches} />`,
  overview: ({ place, main }) => html`<h1 class="aside">Flows of this worker</h1>${place.unknown && html`<${Empty}>This page has no place ${place.unknown}: these are all flows.<//>`}<${Overview} poll=${main} narrow=${narrow.matches} />`,
  api: ({ main }) => html`<${Api} poll=${main} />`,
};

const askAgain = () => polls.forEach((poll) => poll.ask());

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

root.replaceChildren();
addEventListener("hashchange", go);
narrow.addEventListener("change", draw);
document.addEventListener("visibilitychange", draw);
// Ages grow while nothing new comes.
setInterval(() => !document.hidden && [...polls.values()].some((poll) => poll.stale) && draw(), 1000);
go();
