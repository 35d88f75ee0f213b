// The module of WebAssembly. This is the only file that knows how a call reaches it; see src/export.rs.

const KINDS = { TEXT: 0, BYTES: 1, ERROR: 2 };
const encoder = new TextEncoder();
const decoder = new TextDecoder();

async function unpack(base64) {
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/**
 * Loads the module that tools/web/build has put into the page. Returns `call(name, arguments, file)`, which returns text
 * or a Uint8Array, and throws an Error whose message is for the person who uses the page.
 */
export async function load() {
  const bytes = await unpack(document.getElementById("module").textContent);
  const { instance } = await WebAssembly.instantiate(bytes, {});
  const { memory, reserve, call, answer } = instance.exports;
  return (name, values, file = new Uint8Array()) => {
    const json = encoder.encode(JSON.stringify({ function: name, arguments: values }));
    // The memory may move during each of the three calls, so the views are made afterwards.
    const input = reserve(json.length + file.length);
    new Uint8Array(memory.buffer, input, json.length).set(json);
    new Uint8Array(memory.buffer, input + json.length, file.length).set(file);
    const length = call(json.length);
    // A copy, because the next call overwrites it.
    const all = new Uint8Array(memory.buffer, answer(), length).slice();
    const [kind, contents] = [all[0], all.subarray(1)];
    if (kind === KINDS.BYTES) return contents;
    const text = decoder.decode(contents);
    if (kind === KINDS.ERROR) throw new Error(text);
    return text;
  };
}
