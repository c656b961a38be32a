// Talks to the API of the server that this page came from.

/** Fetch a document; throws with the server's own words. */
export async function fetchDocument(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.cause ?? `status ${answer.status}`);
  return found;
}

export const targets = () => fetchDocument("/api/v1/targets");
export const phases = (id) => fetchDocument(`/api/v1/targets/${encodeURIComponent(id)}/phases`);
export const curves = (id) => fetchDocument(`/api/v1/targets/${encodeURIComponent(id)}/curves`);
export const windows = (id, since, points) =>
  fetchDocument(`/api/v1/targets/${encodeURIComponent(id)}/windows?since=${since}&points=${points}`);

/** Call `tell(kind, document)` for each event; `lost(isLost)` when the stream breaks or is back. */
export function listen(tell, lost) {
  const source = new EventSource("/api/v1/events");
  for (const kind of ["target", "phase", "end", "gap"])
    source.addEventListener(kind, (event) => tell(kind, JSON.parse(event.data)));
  source.onopen = () => lost(false);
  source.onerror = () => lost(true);
}
