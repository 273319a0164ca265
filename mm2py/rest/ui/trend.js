// How a flow went in the last hour: RPO, lag and rate as lines, and in one sentence whether it gets better.
import { Empty, When } from "./parts.js";
import { html } from "./view.js";
import { bytesPerSecond, count, counted, duration, perSecond } from "./words.js";

const [WIDTH, HEIGHT] = [260, 44];
const AGO_MS = 10 * 60_000;
const SAME = 0.1;

const LINES = [
  { key: "lag_ms", title: "RPO (time)", say: duration },
  { key: "lag_records", title: "Lag", say: (value) => counted(value, "record") },
  { key: "records_per_s", title: "Rate", say: perSecond },
  { key: "bytes_per_s", title: "Bytes", say: bytesPerSecond },
];

/** Paths between known samples; where one is not known there is a gap. */
function path(samples, key, most) {
  const [first, last] = [samples[0].at_ms, samples.at(-1).at_ms];
  const x = (it) => (((it.at_ms - first) / Math.max(1, last - first)) * WIDTH).toFixed(1);
  const y = (it) => (HEIGHT - 2 - (it[key] / most) * (HEIGHT - 6)).toFixed(1);
  let drawing = false;
  return samples.map((it) => {
    if (it[key] === null) return ((drawing = false), "");
    // A sample between two gaps is a dot: a path of no length draws one with round caps.
    const step = drawing ? `L${x(it)} ${y(it)}` : `M${x(it)} ${y(it)}h0`;
    drawing = true;
    return step;
  }).join(" ");
}

function Line({ samples, line }) {
  const known = samples.map((it) => it[line.key]).filter((value) => value !== null);
  if (!known.length) return html`<figure class="trend wide"><figcaption>${line.title}: not known</figcaption></figure>`;
  const most = Math.max(...known);
  return html`<figure class="trend"><figcaption>${line.title}: at most ${line.say(most)}, at least ${line.say(Math.min(...known))}</figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${`${line.title} of the last hour`} preserveAspectRatio="none"><path d=${path(samples, line.key, most || 1)} /></svg></figure>`;
}

/** Of the RPO: what it was some minutes ago and is now. */
export function course(samples) {
  const last = samples.at(-1);
  const before = samples.find((it) => it.lag_ms !== null && last.at_ms - it.at_ms <= AGO_MS);
  if (last.lag_ms === null || !before || before === last) return "";
  const [was, is] = [before.lag_ms, last.lag_ms];
  const ago = duration(last.at_ms - before.at_ms);
  if (Math.abs(is - was) <= Math.max(1000, SAME * was)) return `As far behind as ${ago} ago: ${duration(is)}.`;
  return is < was ? `Getting better: ${duration(is)} behind, ${ago} ago ${duration(was)}.` : `Getting worse: ${duration(is)} behind, ${ago} ago ${duration(was)}.`;
}

export function Trend({ poll, workers }) {
  const samples = poll?.data;
  if (!samples) return null;
  if (samples.length < 2) return html`<${Empty}>This worker has watched the flow for less than a minute.<//>`;
  return html`<section class="course" aria-label="The last hour">
    <p>${course(samples)} <span class="muted">Seen by this worker since <${When} ms=${samples[0].at_ms} />${workers > 1 ? `; its own part of what ${count(workers)} workers copy` : ""}.</span></p>
    <div class="trends">${LINES.map((line) => html`<${Line} samples=${samples} line=${line} />`)}</div></section>`;
}
