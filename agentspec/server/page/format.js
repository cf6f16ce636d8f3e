// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (n) => whole.format(Math.round(n));

export function speed(n) {
  if (!Number.isFinite(n) || n <= 0) return "–";
  return n >= 100 ? count(n) : n.toFixed(1);
}

export function percent(part, all) {
  if (!all) return "–";
  const share = (100 * part) / all;
  // 99.96 % reused is not all of it
  return `${share > 99 && share < 100 ? (Math.floor(share * 10) / 10).toFixed(1) : Math.round(share)} %`;
}

export const times = (a, b) => (a > 0 && b > 0 ? `×${(a / b).toFixed(2)}` : "–");

// a speed against the plain one; what lies within 2 % of it says nothing
export function against(a, b) {
  if (!(a > 0 && b > 0)) return "unknown";
  const ratio = a / b;
  return ratio < 0.98 ? "slower" : ratio > 1.02 ? "faster" : "even";
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  const rest = String(Math.floor(seconds % 60)).padStart(2, "0");
  if (minutes < 60) return `${minutes}:${rest} min`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
}

export function clock(at) {
  const time = new Date(at * 1000);
  return [time.getHours(), time.getMinutes(), time.getSeconds()]
    .map((n) => String(n).padStart(2, "0"))
    .join(":");
}

// "OpenAI/Python 1.2.3 (Linux)" says enough with its first word
export function client(agent) {
  return agent.trim().split(/[\s(]/, 1)[0] || "unnamed client";
}
