// The changes that the page offers for a flow, in the words of its buttons.
import { Action } from "./changing.js";
import { flowLink } from "./parts.js";
import { pathOf, read } from "./polling.js";
import { html } from "./view.js";
import { bytes, count, counted, duration } from "./words.js";

const post = (flow, action, more = {}) => ({ method: "POST", path: `${pathOf("flows", flow.flow)}/${action}`, at: pathOf("flows", flow.flow), revision: flow.revision, ...more });

const pause = (flow) => post(flow, "pause", { title: `Pause ${flow.flow}`, button: "Pause", text: "Nothing is copied until it is resumed; positions stay. What is written meanwhile is copied then, if the source still has it." });
const resume = (flow) => post(flow, "resume", { title: `Resume ${flow.flow}`, button: "Resume", text: "It continues with the next record after the last that was copied." });
// The flow of a lost or left source: what the button does is in its name.
const copyAgain = (flow) => ({ ...resume(flow), button: `Copy ${flow.source} to ${flow.target} again`, title: `Copy ${flow.source} to ${flow.target} again`,
  text: `The flow was stopped, as a failover does. It would go on with what ${flow.source} has, beside what clients wrote to ${flow.target} since. To bring clients back to ${flow.source}, start a failback instead.` });
const resumeAll = (flow) => post(flow, "resume", { title: `Resume all topics of ${flow.flow}`, button: "Resume all topics", query: { all_topics: true } });
const restart = (flow) => post(flow, "restart", { title: `Restart ${flow.flow}`, button: "Restart", text: "Its connectors and tasks end and begin again at their positions: nothing is copied for some seconds." });
const restartFailed = (flow) => post(flow, "restart", { title: `Restart what failed of ${flow.flow}`, button: "Restart what failed", query: { only_failed: true } });

/** Buttons for the state that a flow is in. */
export function FlowActions({ flow }) {
  const rests = ["PAUSED", "STOPPED"].includes(flow.state);
  const failed = flow.state === "FAILED" || flow.failed_partitions > 0;
  const paused = flow.state === "PAUSED";
  const orders = [failed && restartFailed(flow), rests ? (paused ? resume(flow) : copyAgain(flow)) : pause(flow), flow.paused.length > 0 && resumeAll(flow), restart(flow)];
  return html`<p class="buttons">${rests && !paused ? html`<a class="action" href=${flowLink(flow.flow, "failover")}>Failover and failback</a> ` : null}${orders.filter(Boolean).map((order) => html`<${Action} order=${order} />`)}</p>`;
}

/** Buttons for one topic of a flow. */
export function TopicActions({ flow, topic, paused }) {
  const one = (action, word, text) => post(flow, action, { title: `${word} ${topic}`, button: word, query: { topic }, text });
  return html`<span class="buttons">
    <${Action} order=${paused ? one("resume", "Resume topic", "It continues with the next record after the last that was copied.") : one("pause", "Pause topic", "Only this topic waits; its positions stay.")} />
    <${Action} order=${one("restart", "Restart its tasks", "The tasks that have this topic end and begin again at their positions.")} /></span>`;
}

const patch = (flow, more) => ({ method: "PATCH", path: pathOf("flows", flow.flow), at: pathOf("flows", flow.flow), revision: flow.revision, button: "Change", ...more });
const orNull = (value) => (value === "" ? null : value);
const FILE = "empty: as in the worker's file";

export const chooseTopics = (flow, config) => {
  const source = config.filter((it) => it.connector.endsWith("MirrorSourceConnector"));
  const now = Object.fromEntries((source.length ? source : config).flatMap((it) => it.properties).map((it) => [it.key, it.value]));
  return patch(flow, {
    title: `Topics of ${flow.flow}`, topics: true,
    text: "Names and Java patterns, with commas between them.",
    fields: ["topics", "topics.exclude"].map((name) => ({ name, label: name, value: now[name] || "", hint: FILE })),
    // What was not touched is not sent: another user may have changed it.
    body: (values) => ({ config: Object.fromEntries(Object.entries(values).filter(([key, value]) => value !== (now[key] || "")).map(([key, value]) => [key, orNull(value)])) }),
  });
};

export const setProperty = (flow, connector, { key, value }) => patch(flow, {
  title: `${key} of ${connector}`,
  fields: [{ name: "value", label: key, value: value || "", hint: FILE }],
  body: (values) => ({ connectors: { [connector]: { [key]: orNull(values.value) } } }),
});

export const addProperty = (flow) => patch(flow, {
  title: `A property of ${flow.flow}`,
  text: "It goes to the connectors that read it, and wins over the worker's file.",
  fields: [{ name: "key", label: "Property", hint: "for example sync.group.offsets.enabled" }, { name: "value", label: "Value", hint: FILE }],
  body: (values) => ({ config: { [values.key.trim()]: orNull(values.value) } }),
});

export const rollback = (flow, revision) => post(flow, "rollback", {
  title: `${flow.flow} as of revision ${revision}`, button: "Go back", query: { revision },
  text: revision === 0 ? "Properties and pauses become those of the worker's file." : "Properties and pauses become what they were after this revision; the history keeps what was between.",
});

// The clusters of the file, and of those that are not offered why.
async function clusterChoices() {
  const all = await read("clusters");
  const offered = (ends) => all.filter((it) => it[ends].length).map((it) => ({ value: it.alias, note: `with ${it[ends].join(", ")}` }));
  const missing = all.filter((it) => it.note).map((it) => `${it.alias} is no target here: ${it.note}.`);
  return { source: offered("targets"), target: offered("sources"), note: [`Clusters of the worker's file: ${all.map((it) => it.alias).join(", ")}. Another one is added to clusters in that file.`, ...missing].join(" ") };
}

export const createFlow = () => ({
  method: "POST", path: "flows", title: "Add a flow", button: "Add",
  text: "Between two clusters of the worker's file. It begins to copy at once, on all workers.", choose: clusterChoices,
  fields: [{ name: "source", label: "From cluster", hint: "alias" }, { name: "target", label: "To cluster", hint: "alias" }, { name: "topics", label: "topics", hint: "for example orders.*" }],
  body: (values) => ({ source: values.source.trim(), target: values.target.trim(), ...(values.topics ? { config: { topics: values.topics } } : {}) }),
});

const failoverPath = (flow, kind, action) => `${pathOf("jobs", kind, flow.flow)}:${action}`;

export const startFailover = (flow, kind = "failover") => ({
  method: "POST", path: failoverPath(flow, kind, "start"), direct: true, button: kind === "failback" ? "Start failback" : "Start failover", did: "Begun: its steps are on this page.",
  title: kind === "failback" ? `Return clients to ${flow.source}` : `Move clients to ${flow.target}`,
  text: `Writers of ${kind === "failback" ? flow.target : flow.source} are fenced as far as ACLs allow, what is left is copied, groups get their exact offsets, and clients may write to ${kind === "failback" ? flow.source : flow.target}. It is refused where something would be lost. The plan below says what to expect.`,
});

export const continueFailover = (flow, { kind, step, unplanned }) => ({
  ...startFailover(flow, kind), title: `Continue the ${kind}`, button: `Continue the ${kind}`,
  text: `It goes on at ${step}; what is done is not done again.${unplanned ? " What was not copied is listed and kept once the cluster that was given up answers and nobody writes to it." : ""}`,
});

/** For records that are not copied, and for a source that is gone: the number first, and what it would still be refused for. */
export function acceptLoss(flow, { kind, would_lose: lost, source_reachable: answers }) {
  const [from, to] = kind === "failback" ? [flow.target, flow.source] : [flow.source, flow.target];
  return {
    method: "POST", path: failoverPath(flow, kind, "start"), planPath: failoverPath(flow, kind, "plan"), button: answers ? `Accept the loss and start ${kind}` : `Start ${kind} without ${from}`, did: "Begun: its steps are on this page.",
    title: `Move clients to ${to} without all records`,
    text: `${answers ? `${counted(lost, "offset")} of ${from} would not be copied, as far as is known.` : `How many records of ${from} are not copied is not known while it does not answer${lost > 0 ? `: at least ${counted(lost, "offset")}` : ""}.`} What ${from} still has of them is kept in quarantine topics on ${to}${answers ? "" : ` when it answers again: until then ${from} is given up`}.`,
    fields: [{ name: "accept_loss", label: "Offsets that may be lost at most", value: String(lost), hint: "a number" }],
    query: (values) => ({ accept_loss: values.accept_loss.trim(), unplanned: !answers }),
  };
}

export const cancelFailover = (flow, kind) => ({
  method: "POST", path: failoverPath(flow, kind, "cancel"), direct: true, button: `Cancel ${kind}`, title: `Cancel the ${kind} of ${flow.flow}`,
  text: "Writers are let in again and the flow goes on. Possible until clients may write to the other side (SWITCH).",
});

const whole = (text) => (/^\d+$/.test(text) ? Number(text) : text);

/** History beside the running flow, on Spark: the plan is made first, and stays under Jobs until it is started or cancelled. */
export const copyHistory = (flow) => ({
  method: "POST", planPath: "jobs/backfill", path: (plan) => `${pathOf("jobs", "backfill", plan.id)}:start`, button: "Start", did: "Begun: how far it is, is on this page.", title: `Copy history of ${flow.flow}`,
  text: "What the source still has and the flow did not copy, on Spark beside the running flow. Nothing is copied before you start what was planned.",
  fields: [{ name: "topics", label: "topics", hint: "empty: all of the flow" }, { name: "from", label: "from", hint: "earliest, 24 hours ago, a time" }, { name: "to", label: "to", hint: "now, or a time" }, { name: "rate_limit", label: "bytes per second", hint: "empty: the flow's limit" }],
  body: (values) => ({ flow: flow.flow, ...Object.fromEntries(Object.entries(values).map(([key, text]) => [key, text.trim()]).filter(([, text]) => text).map(([key, text]) => [key, key === "rate_limit" ? whole(text) : text])) }),
  planned: ({ plan }) => html`<p>${counted(plan.partitions.length, "partition")} in ${counted(plan.lanes.length, "lane")}: ${counted(plan.partitions.reduce((sum, it) => sum + it.offsets, 0), "offset")}${plan.bytes ? `, ${bytes(plan.bytes)}` : ""}${plan.estimated_seconds ? `, about ${duration(plan.estimated_seconds * 1000)}` : ""}.</p>
    <ul>${plan.partitions.slice(0, 20).map((it) => html`<li>${it.topic}-${it.partition}: ${count(it.from)} to ${count(it.to - 1)}</li>`)}${plan.partitions.length > 20 ? html`<li>and ${count(plan.partitions.length - 20)} more</li>` : null}</ul>
    ${(plan.notes || []).map((it) => html`<p class="muted">${it}</p>`)}`,
});
