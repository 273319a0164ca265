// What is wrong with a flow, how bad that is, and what mends it. "good" is for a flow that is known to copy, or to have copied all.
import { count, counted, duration, some } from "./words.js";

export const MARKS = {
  bad: { sign: "✖\uFE0E", word: "wrong" },
  warn: { sign: "▲", word: "look here" },
  unknown: { sign: "?", word: "not known" },
  off: { sign: "‖", word: "copies nothing" },
  note: { sign: "◆", word: "note" },
  plain: { sign: "•", word: "runs" },
  good: { sign: "✔\uFE0E", word: "good" },
  done: { sign: "✔\uFE0E", word: "done" },
  next: { sign: "○", word: "to come" },
};
const ORDER = Object.keys(MARKS);
export const rank = (kind) => ORDER.indexOf(kind);

const LATE_MS = 60_000;
const STUCK_MS = 30_000;

const cli = (action, flow, more = "") => `mm2py flow ${action} ${flow.source}/${flow.target}${more}`;

// Of one flow on the first page: what a cluster that is away causes is one thing, whatever else it keeps from working.
const MOST_CAUSES = 4;
const MOST_WHILE_AWAY = 2;

// Where a stream copies them all partitions are held, and it says itself what is wrong.
const idle = (f) => f.copied_topics === 0 && f.engine !== "spark";

// Partitions that a job copies are held without an error while it lives, and the lag of the flow is not known for as long.
const ofJob = (f) => f.state === "RUNNING" && f.engine !== "spark" && f.held_partitions > 0 && f.lag_records === null;

// What never copied anything has no age.
const isStuck = (f) => f.lag_records > 0 && !f.records_per_s && (f.lag_ms === null || f.lag_ms > STUCK_MS);

// Each returns [kind, text, command, word instead of the state] where it applies; the first one counts.
const RULES = [
  (f) => f.state === "FAILED" && ["bad", f.copied_topics > 0 ? "part of it failed, topics are copied" : "it copies nothing", cli("restart", f, " --only-failed")],
  (f) => f.state === "WAITING" && ["bad", `waits for a cluster (${f.source} or ${f.target}): it copies nothing`, cli("describe", f)],
  (f) => f.state === "SUSPENDED" && ["bad", `the target ${f.target} does not answer: it copies nothing`, cli("describe", f)],
  (f) => f.state === "DISABLED" && ["off", "not enabled: it sends heartbeats and copies nothing", cli("create", f)],
  (f) => f.state === "PAUSED" && ["off", "it copies nothing until it is resumed", cli("resume", f)],
  (f) => f.state === "STOPPED" && ["off", "it copies nothing. Where it was failed over, return clients by a failback; to resume it would copy what is old", cli("describe", f)],
  (f) => ["UNASSIGNED", "RESTARTING"].includes(f.state) && ["warn", "its tasks are about to start", cli("describe", f)],
  (f) => f.incomplete.length > 0 && ["warn", `numbers are missing: ${counted(f.incomplete.length, "worker")} gave no answer`, cli("describe", f)],
  (f) => f.failed_partitions > 0 && ["bad", `${counted(f.failed_partitions, "partition")} failed; once the cause is mended, restart what failed`, cli("restart", f, " --only-failed")],
  (f) => idle(f) && f.topics > 0 && f.errors.length > 0 && ["bad", "none of its topics is copied", cli("describe", f, " -o wide")],
  (f) => (f.state !== "RUNNING" || f.errors.length > 0) && ["warn", "not all of it is copied", cli("describe", f, " -o wide")],
  (f) => (f.topics === 0 || f.partitions === 0) && ["warn", "runs, and copies nothing: no source topic is chosen", cli("set", f, " topics='...'")],
  (f) => idle(f) && f.paused.length > 0 && ["off", "all its topics are paused: it copies nothing", cli("resume", f, " --all-topics"), "ALL PAUSED"],
  (f) => idle(f) && f.held_partitions > 0 && ["off", "a job has all its partitions: the flow itself copies nothing", cli("describe", f), "ALL HELD"],
  (f) => idle(f) && ["warn", "none of its partitions is copied", cli("describe", f, " -o wide")],
  (f) => f.engine === "spark" && f.lag_records === null && ["unknown", "a stream on Spark is to copy it: Jobs has how far it is", `mm2py job stream status FILE --flow '${f.flow}'`],
  (f) => ofJob(f) && ["note", `copies; a job copies ${counted(f.held_partitions, "partition")} of it, Jobs has how far it is`, cli("describe", f)],
  (f) => f.lag_records === null && ["unknown", "runs; its lag is not known", cli("describe", f, " -o wide")],
  (f) => isStuck(f) && ["warn", `${count(f.lag_records)} records behind, and nothing is copied now`, cli("describe", f, " -o wide")],
  (f) => f.lag_ms > LATE_MS && ["warn", `${duration(f.lag_ms)} behind`, `mm2py lag --flow ${f.source}/${f.target}`],
  (f) => f.lag_records > 0 && f.lag_ms === null && ["warn", `${count(f.lag_records)} records behind, of unknown age`, `mm2py lag --flow ${f.source}/${f.target}`],
  (f) => f.paused.length > 0 && ["note", `copies, without what is paused: ${some(f.paused)}`, cli("resume", f, " --all-topics")],
  (f) => f.notes.length > 0 && ["note", "copies; there is something to know", cli("describe", f)],
  (f) => f.held_partitions > 0 && ["note", `copies, without ${counted(f.held_partitions, "held partition")}`, cli("describe", f, " -o wide")],
];

/** How a flow is: `kind` of MARKS, its state in one `word`, `text` in words, `command` that mends or explains it. */
export function judge(flow) {
  for (const rule of RULES) {
    const found = rule(flow);
    if (found) return { kind: found[0], text: found[1], command: found[2], word: found[3] || flow.state };
  }
  const text = flow.lag_records > 0 ? "copies what comes" : "all is copied";
  return { kind: "good", text, command: "", word: flow.state };
}

// Of a failover now, as far as the flow's own numbers tell: [kind, word, why]; the first that applies counts.
const READY = [
  (f) => f.state === "DISABLED" && ["off", "none", "the flow is not enabled"],
  (f) => f.state === "STOPPED" && ["off", "none", "the flow is stopped, as a failover leaves it"],
  (f, { kind, text }) => kind === "bad" && ["bad", "not ready", text],
  (f) => f.state === "PAUSED" && ["bad", "not ready", "the flow is paused"],
  (f) => f.paused.length > 0 && ["bad", "not ready", `paused: ${some(f.paused)}`],
  (f) => f.engine === "spark" && ["bad", "not ready", "a stream on Spark has to end first"],
  (f) => f.held_partitions > 0 && ["bad", "not ready", `${counted(f.held_partitions, "partition")} held`],
  (f, { text }) => (f.topics === 0 || idle(f) || isStuck(f)) && ["bad", "not ready", text],
  (f, { kind, text }) => (kind === "unknown" || f.incomplete.length + f.errors.length > 0 || f.state !== "RUNNING") && ["unknown", "not known", text],
  (f) => (f.lag_ms > LATE_MS || (f.lag_ms === null && f.lag_records > 0)) && ["warn", "ready, waits", `copied first: ${counted(f.lag_records, "record")}, ${f.lag_ms === null ? "of unknown age" : `${duration(f.lag_ms)} behind`}`],
];

/** Whether clients can be moved now, and the worst reason against it; the plan under Failover asks both clusters, this asks nobody. */
export function failoverNow(flow) {
  const judged = judge(flow);
  for (const rule of READY) {
    const found = rule(flow, judged);
    if (found) return found;
  }
  return ["good", "note"].includes(judged.kind) ? ["good", "ready", ""] : ["unknown", "not known", judged.text];
}

/** Whether a flow copies something: while it does not, nothing of it is good, whatever its tasks and groups are. */
export const copies = (flow) => ["RUNNING", "DEGRADED"].includes(flow.state) && flow.topics !== 0 && flow.lag_records !== null && !idle(flow) && !isStuck(flow);

const STATES = { PAUSED: "off", "PARTLY PAUSED": "note", STOPPED: "off", DISABLED: "off", UNASSIGNED: "warn", RESTARTING: "warn", HELD: "warn", FAILED: "bad" };

/** How a connector, task, topic or partition is: one that runs is good only where it is known to copy. */
export function judgeState(it, copying) {
  if (it.state !== "RUNNING") return STATES[it.state] || "unknown";
  if (!copying || it.lag_records === undefined) return "plain";
  if (it.lag_records === null) return "unknown";
  return isStuck(it) ? "warn" : "good";
}

// Equal causes are one line with the places that have it.
function byCause(errors) {
  const found = new Map();
  for (const { where, message, away, command } of errors) {
    const cause = message.replaceAll(where, "…");
    if (!found.has(cause)) found.set(cause, { message, away, command, places: [] });
    found.get(cause).places.push(where);
  }
  // What keeps a partition from being copied comes before what a connector misses beside it ("connector: what").
  const beside = ({ places }) => Number(places[0].includes(": "));
  return [...found.values()].sort((one, two) => beside(one) - beside(two));
}

/** Everything that is wrong or worth knowing of all flows, the worst first; `brief`: of each the causes that come first. */
export function findings(flows, brief = false) {
  const found = [];
  for (const flow of flows) {
    const { kind, text, command } = judge(flow);
    // `first`: what mends the cause, where its text has that command.
    const add = (how, where, said, mends, first = "") =>
      found.push({ kind: how, flow, where, text: said, commands: [first, mends].filter(Boolean), sinceMs: flow.since_ms });
    const causes = byCause(flow.errors);
    if (!["good", "note"].includes(kind) && !causes.length) add(kind, [], text, command);
    const how = kind === "bad" ? "bad" : "warn";
    // "flow" is no place of its own.
    const most = !brief ? causes.length : causes.some((it) => it.away) ? MOST_WHILE_AWAY : MOST_CAUSES;
    for (const cause of causes.slice(0, most)) add(how, cause.places.filter((it) => it !== "flow"), cause.message, command || cli("describe", flow), cause.command);
    if (causes.length > most) add("note", [], `${counted(causes.length - most, "more cause")}: the flow's page has them`, "");
    if (flow.paused.length && !["off", "note"].includes(kind)) add("note", [], `paused: ${some(flow.paused)}`, cli("resume", flow, " --all-topics"));
    for (const worker of flow.incomplete) add("warn", [], `no numbers from ${worker}`, command);
    if (flow.records_lost > 0) {
      add("warn", [], `${counted(flow.records_lost, "record")} lost: the ledger names each range and why`, "mm2py ledger FILE");
    }
    for (const note of flow.notes) add("note", [], note, "");
    if (kind === "note" && !flow.notes.length) add("note", [], text, command);
  }
  return found.sort((one, two) => rank(one.kind) - rank(two.kind));
}

/** One sentence about all flows: nothing is good while nothing is copied. */
export function verdict(flows) {
  const kinds = flows.map((flow) => judge(flow).kind);
  const copying = kinds.filter((kind) => kind === "good" || kind === "note").length;
  const broken = kinds.filter((kind) => ["bad", "warn", "unknown"].includes(kind)).length;
  if (!flows.length) return { kind: "off", text: "No flow is defined in this worker's file." };
  if (broken) return { kind: kinds.includes("bad") ? "bad" : "warn", text: `${broken} of ${counted(flows.length, "flow")} ${broken === 1 ? "needs" : "need"} a look.` };
  if (!copying) return { kind: "off", text: "Nothing is copied: no flow is at work." };
  const of = (test) => flows.filter((flow, index) => flow.state !== "DISABLED" && test(flow, kinds[index])).map((flow) => flow.flow);
  const off = of((_, kind) => kind === "off");
  if (off.length) return { kind: "off", text: `${count(off.length)} of ${counted(flows.length, "flow")} ${off.length === 1 ? "copies" : "copy"} nothing: ${some(off)}.` };
  const partly = of((flow) => flow.paused.length > 0);
  if (partly.length) return { kind: "note", text: `Nothing is wrong, but topics are paused: ${some(partly)}.` };
  const held = of((flow) => flow.held_partitions > 0 && !ofJob(flow));
  if (held.length) return { kind: "note", text: `Nothing is wrong, but partitions are held: ${some(held)}.` };
  const jobs = of(ofJob);
  if (jobs.length) return { kind: "note", text: `Nothing is wrong; a job copies partitions of ${some(jobs)}.` };
  return { kind: "good", text: `Nothing is wrong: ${count(copying)} of ${counted(flows.length, "flow")} ${copying === 1 ? "copies" : "copy"}.` };
}
