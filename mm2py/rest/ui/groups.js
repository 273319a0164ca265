// Consumer groups of a flow: where each is on both sides, what it would read again or skip after a move, and why it is not synced.
import { Command, Empty, flowLink, Mark, Waiting } from "./parts.js";
import { Table } from "./table.js";
import { html } from "./view.js";
import { count, counted, UNKNOWN } from "./words.js";

// Why it has no exact place on the target in one of its partitions; it is a little ahead of a copy that moves most of the time.
const AHEAD = "not-yet-copied";
const reasons = (group) => group.partitions.filter((it) => it.reason);
const untranslated = (group) => reasons(group)[0]?.reason || "";
const isAhead = (group) => reasons(group).every((it) => it.place === AHEAD);

function judged(group, copying) {
  if (group.skips > 0) return ["bad", "would skip"];
  if (group.reads_again === null || group.skips === null) return ["unknown", "not known"];
  if (group.not_synced) return ["warn", "not synced"];
  if (untranslated(group)) return copying && isAhead(group) ? ["note", "ahead of the copy"] : ["warn", "not translated"];
  if (group.reads_again > 0) return ["note", "reads again"];
  return [copying ? "good" : "plain", "in place"];
}

function GroupMark({ group, copying }) {
  const [kind, word] = judged(group, copying);
  return html`<${Mark} kind=${kind} word=${word} />`;
}

const members = (state, number) => (state ? `${state}${number === null ? "" : `, ${counted(number, "member")}`}` : "not there");

const why = (group) => group.not_synced || untranslated(group);

const columns = (flow, copying) => [
  { key: "group", title: "Group", value: (it) => it.group, show: (it) => html`<a href=${flowLink(flow.flow, "groups", it.group)} title=${it.group}>${it.group}</a>` },
  { key: "state", title: "If it moved now", worst: true, value: (it) => (it.skips ?? 1e15) + (it.not_synced || untranslated(it) ? 1 : 0), show: (it) => html`<${GroupMark} group=${it} copying=${copying} />` },
  { key: "again", title: "Reads again", number: true, hint: "records that a consumer moving now would read a second time", value: (it) => it.reads_again, show: (it) => count(it.reads_again) },
  { key: "skips", title: "Skips", number: true, hint: "records that a consumer moving now would not read", value: (it) => it.skips, show: (it) => count(it.skips) },
  { key: "here", title: `On ${flow.source}`, wide: true, value: (it) => it.state, show: (it) => members(it.state, it.members) },
  { key: "there", title: `On ${flow.target}`, wide: true, value: (it) => it.state_there, show: (it) => members(it.state_there, it.members_there) },
  { key: "why", title: "Not synced", wide: true, value: why, show: (it) => html`<span title=${why(it)}>${why(it) || "synced"}</span>` },
];

export function Groups({ flow, poll, chosen, copying }) {
  const rows = poll.data;
  if (!rows) return html`<${Waiting} poll=${poll} what="groups" />`;
  if (!rows.length) {
    return html`<${Empty}>No group of ${flow.source} is chosen by this flow. Groups appear once they have committed an offset of a copied topic;
      choose them with <${Command} text=${`mm2py flow set ${flow.source}/${flow.target} groups='.*'`} /><//>`;
  }
  const group = rows.find((it) => it.group === chosen);
  return html`${chosen === undefined ? null : html`<${Group} flow=${flow} group=${group} name=${chosen} copying=${copying} />`}
    <${Table} rows=${rows} columns=${columns(flow, copying)} sort="state" id=${(it) => it.group} text=${(it) => `${it.group} ${it.not_synced} ${it.type}`}
      label=${`Groups of ${flow.flow}`} noun="group" chosen=${chosen} />`;
}

function Group({ flow, group, name, copying }) {
  const back = flowLink(flow.flow, "groups");
  if (!group) return html`<section class="detail"><${Empty}>${flow.flow} has no group "${name}": <a href=${back}>all groups</a>.<//></section>`;
  return html`<section class="detail" aria-labelledby="group"><h3 id="group">Group ${group.group}</h3> <a href=${back}>close</a>
    <p><${GroupMark} group=${group} copying=${copying} /> ${group.type ? `${group.type} group` : ""}</p>
    <p>If it moved to ${flow.target} now, it would read ${group.reads_again === null ? UNKNOWN : group.reads_again ? `${counted(group.reads_again, "record")} again` : "nothing again"} and skip ${group.skips === null ? UNKNOWN : group.skips ? counted(group.skips, "record") : "nothing"}.</p>
    ${group.not_synced ? html`<p class="cause">Its offsets are not written to ${flow.target}: ${group.not_synced}</p>` : null}
    <div class="scroll low" tabindex="0"><table>
      <thead><tr><th scope="col">Partition</th><th scope="col" class="number">Offset on ${flow.source}</th><th scope="col" class="number wide">Belongs on ${flow.target}</th>
        <th scope="col" class="number wide">Offset on ${flow.target}</th><th scope="col" class="number">Reads again</th><th scope="col" class="number">Skips</th><th scope="col" class="wide">Place</th></tr></thead>
      <tbody>${group.partitions.map((it) => html`<tr key=${`${it.topic} ${it.partition}`}>
        <th scope="row">${it.topic}-${it.partition}</th><td class="number">${count(it.committed)}</td><td class="number wide">${count(it.exact)}</td>
        <td class="number wide">${it.committed_there === null ? "none" : count(it.committed_there)}</td><td class="number">${count(it.reads_again)}</td>
        <td class="number">${count(it.skips)}</td><td class="wide">${it.place || UNKNOWN}</td></tr>
        ${it.reason ? html`<tr key=${`${it.topic} ${it.partition} why`}><td></td><td class="cause" colspan="6">${it.reason}</td></tr>` : null}`)}</tbody>
    </table></div></section>`;
}
