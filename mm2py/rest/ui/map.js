// The map: clusters as nodes, flows as arrows with state, lag in seconds and rate. A list shows more than it can draw.
import { judge, MARKS } from "./judgement.js";
import { flowLink } from "./parts.js";
import { html } from "./view.js";
import { duration, perSecond } from "./words.js";

const MOST_CLUSTERS = 7;
const MOST_FLOWS = 12;
const NODE = { width: 150, height: 48 };
const LABEL = { width: 160, height: 58 };
const LETTERS = 14;

export const isDrawn = (flows, narrow) => flows.length > 0 && flows.length <= MOST_FLOWS && clustersOf(flows).length <= (narrow ? 2 : MOST_CLUSTERS);

const clustersOf = (flows) => [...new Set(flows.flatMap((flow) => [flow.source, flow.target]))];
const short = (name) => ([...name].length > LETTERS ? `${[...name].slice(0, LETTERS - 1).join("")}…` : name);

function places(clusters, narrow) {
  const [width, height] = narrow ? [366, 330] : [960, clusters.length > 2 ? 460 : 190];
  const [across, down] = [width / 2 - NODE.width / 2 - 8, height / 2 - NODE.height / 2 - 8];
  const begin = narrow ? -Math.PI / 2 : Math.PI;
  const at = clusters.map((name, index) => {
    const angle = begin + (2 * Math.PI * index) / clusters.length;
    return [name, { x: width / 2 + across * Math.cos(angle), y: height / 2 + down * Math.sin(angle) }];
  });
  return { width, height, at: new Map(at) };
}

// Where a line from the centre of a node towards a point leaves its box.
function edge(centre, towards, gap) {
  const [dx, dy] = [towards.x - centre.x, towards.y - centre.y];
  const scale = Math.min(
    Math.abs((NODE.width / 2 + gap) / (dx || 1e-9)), Math.abs((NODE.height / 2 + gap) / (dy || 1e-9)), 1,
  );
  return { x: centre.x + dx * scale, y: centre.y + dy * scale };
}

// An arrow bends to its left, by so much that the labels of both directions between two clusters are apart.
function course(from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const bend = 2 * ((Math.abs(dy) / length) * (LABEL.width / 2 + 6) + (Math.abs(dx) / length) * (LABEL.height / 2 + 6));
  const middle = { x: (from.x + to.x) / 2 + (dy / length) * bend, y: (from.y + to.y) / 2 - (dx / length) * bend };
  const [begin, end] = [edge(from, middle, 2), edge(to, middle, 9)];
  return {
    path: `M${begin.x} ${begin.y}Q${middle.x} ${middle.y} ${end.x} ${end.y}`,
    label: { x: (begin.x + 2 * middle.x + end.x) / 4, y: (begin.y + 2 * middle.y + end.y) / 4 },
  };
}

function Arrow({ flow, from, to, stale }) {
  const { kind, text, word } = judge(flow);
  const shown = stale ? "unknown" : kind;
  const { path, label } = course(from, to);
  const lag = flow.lag_ms === null ? "lag not known" : `${duration(flow.lag_ms)} behind`;
  const rate = flow.records_per_s === null ? "rate not known" : perSecond(flow.records_per_s);
  const state = stale ? "no answer" : word;
  // Its name has what can be read of it, as it stands there: for those who speak to their browser (WCAG 2.5.3).
  return html`<a href=${flowLink(flow.flow)} class=${`arrow ${shown}`} aria-label=${`${flow.flow}: ${state} ${lag} ${rate}: ${text}`}>
    <path class="line" d=${path} marker-end=${`url(#head-${shown})`} />
    <g class="label" transform=${`translate(${label.x} ${label.y})`}>
      <rect x=${-LABEL.width / 2} y=${-LABEL.height / 2} width=${LABEL.width} height=${LABEL.height} rx="6" />
      <text class="state" y="-11"><tspan aria-hidden="true">${MARKS[shown].sign} </tspan>${state}</text>${" "}
      <text y="6">${lag}</text>${" "}
      <text y="22">${rate}</text>
    </g>
  </a>`;
}

export function FlowMap({ flows, narrow, stale }) {
  const clusters = clustersOf(flows);
  const { width, height, at } = places(clusters, narrow);
  return html`<svg class="map" viewBox=${`0 0 ${width} ${height}`} role="group" aria-label="Map of clusters and flows">
    <defs>
      ${Object.keys(MARKS).map((kind) => html`<marker id=${`head-${kind}`} class=${`head ${kind}`} viewBox="0 0 10 10" refX="5" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" /></marker>`)}
    </defs>
    ${clusters.map((name) => {
      const { x, y } = at.get(name);
      return html`<g class="node" transform=${`translate(${x} ${y})`}>
        <title>cluster ${name}</title>
        <rect x=${-NODE.width / 2} y=${-NODE.height / 2} width=${NODE.width} height=${NODE.height} rx="8" />
        <text class="name" y="-2">${short(name)}</text><text class="kind" y="15">cluster</text>
      </g>`;
    })}
    ${flows.map((flow) => html`<${Arrow} key=${flow.flow} flow=${flow} from=${at.get(flow.source)} to=${at.get(flow.target)} stale=${stale} />`)}
  </svg>`;
}
