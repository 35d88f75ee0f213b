// The server of this page, if it is `roce explore`: its capture and its live data. Each request needs the token of
// the link.

const token = location.protocol.startsWith("http") ? new URLSearchParams(location.search).get("token") : null;

/** Whether `roce explore` serves this page. A page from a file has no server. */
export const isServed = token !== null;

function address(path) {
  return `${path}?token=${encodeURIComponent(token)}`;
}

/** The capture of the command line as a file, or null if the command has none. */
export async function loadCapture() {
  const response = await fetch(address("/capture"));
  if (response.status === 204) return null;
  if (!response.ok) throw new Error((await response.text()).trim());
  return new File([await response.blob()], nameOf(response));
}

function nameOf(response) {
  const [, name] = /filename\*=UTF-8''([^;]+)/.exec(response.headers.get("Content-Disposition") ?? "") ?? [];
  try {
    return decodeURIComponent(name ?? "capture");
  } catch {
    // Names of files may have any bytes.
    return name;
  }
}

/**
 * Calls `action(event)` with each event of live data, and `lost()` when the connection breaks; the browser tries to
 * connect again by itself. Returns a function that ends it.
 */
export function listen(action, lost) {
  const events = new EventSource(address("/live"));
  events.addEventListener("message", ({ data }) => action(JSON.parse(data)));
  events.addEventListener("error", () => lost());
  return () => events.close();
}
