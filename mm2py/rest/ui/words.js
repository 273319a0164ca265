// Numbers, durations and times in words: each with its unit, unknown ones as "not known".

export const UNKNOWN = "not known";

const known = (value) => value !== null && value !== undefined;
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "shortOffset",
});
const calendar = new Intl.DateTimeFormat("en-GB", {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  timeZoneName: "shortOffset",
});

export const count = (value) => (known(value) ? grouped.format(value) : UNKNOWN);

/** The first names of a list, and how many more it has. */
export const some = (names, most = 3) => names.slice(0, most).join(", ") + (names.length > most ? ` and ${count(names.length - most)} more` : "");

export const counted = (value, noun, plural = `${noun}s`) =>
  known(value) ? `${count(value)} ${value === 1 ? noun : plural}` : UNKNOWN;

export function duration(ms) {
  if (!known(ms)) return UNKNOWN;
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// How old numbers are: whole seconds, so that it does not flicker.
export const age = (ms) => (ms < 120_000 ? `${Math.max(0, Math.round(ms / 1000))} s` : duration(ms));

export function perSecond(value) {
  if (!known(value)) return UNKNOWN;
  return `${value > 0 && value < 10 ? value.toFixed(1) : count(value)} records/s`;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let rest = value;
  for (const unit of ["B", "KB", "MB"]) {
    if (rest < 1000) return `${rest < 10 && unit !== "B" ? rest.toFixed(1) : Math.round(rest)} ${unit}`;
    rest /= 1000;
  }
  return `${rest.toFixed(1)} GB`;
}

export const bytesPerSecond = (value) => (known(value) ? `${bytes(value)}/s` : UNKNOWN);

// The reader's zone with its offset from GMT; the date only where it is not today's.
export function time(ms, now = Date.now()) {
  if (!known(ms)) return UNKNOWN;
  const today = new Date(ms).toDateString() === new Date(now).toDateString();
  return (today ? clock : calendar).format(ms);
}
