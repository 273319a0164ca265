// How often each path is asked: an answer of fifty flows, or of thousands of partitions, costs a worker 40 to 110 ms of CPU (bench.page).
export const OFTEN_MS = 2_000;
export const SELDOM_MS = 10_000;
export const RARELY_MS = 30_000;
const MANY_FLOWS_MS = 5_000;
const LARGE_MS = 10_000;
const MANY_ROWS_MS = 40_000;
const LARGE_FORECAST_MS = 60_000;
const MANY_ROWS = 1_000;
const MANY_FLOWS = 12;

export const underWay = (failover) => failover && !["DONE", "CANCELLED"].includes(failover.step);

/** Whether an answer has a flow whose every look is dear. */
export const isLarge = (data) => (Array.isArray(data) ? data : [data]).some((it) => it?.partitions > MANY_ROWS);

const partitionsOf = (job) => Object.values(job.partitions_by_state ?? {}).reduce((sum, it) => sum + it, 0);

// The first that applies to {path, data, usualMs, large} counts.
const PACES = [
  [({ path, data }) => /^jobs\/fail(over|back)\/[^/]*$/.test(path) && data?.failover, ({ data }) => (underWay(data.failover) ? OFTEN_MS : SELDOM_MS)],
  [({ path, large }) => large && path.endsWith("/forecast"), () => LARGE_FORECAST_MS],
  [({ path, large }) => large && path.includes("/partitions?"), () => LARGE_MS],
  [({ data }) => Array.isArray(data) && data.length > MANY_ROWS, ({ usualMs }) => Math.max(usualMs, MANY_ROWS_MS)],
  // One large flow does not slow the others of the overview to its own pace.
  [({ path, data }) => path === "flows" && (data?.length > MANY_FLOWS || isLarge(data)), () => MANY_FLOWS_MS],
  [({ path, data }) => path.startsWith("jobs?") && data?.some((job) => partitionsOf(job) > MANY_ROWS), () => LARGE_MS],
  [({ data }) => isLarge(data), () => LARGE_MS],
];

/** Milliseconds until a path is asked again: `usualMs`, unless its last `data`, or a `large` flow beside it, says otherwise. */
export const pace = (asked) => (PACES.find(([applies]) => applies(asked))?.[1] ?? (({ usualMs }) => usualMs))(asked);
