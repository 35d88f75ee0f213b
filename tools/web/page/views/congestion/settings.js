// From the controls to the settings of a run: pairs of a key of the scenario and its value, and the command
// that has the same effect.

/** The algorithm of the scenario's text: `dcqcn:paper` in `[host]`, or `none`, the default of a scenario. */
export function congestionOf(text) {
  let table = "";
  for (const line of text.split("\n")) {
    const heading = /^\s*\[+([^\]]+)\]+/.exec(line);
    if (heading) table = heading[1].trim();
    const value = /^\s*congestion\s*=\s*(?:"([^"]*)"|'([^']*)')/.exec(line);
    if (value && table === "host") return value[1] ?? value[2];
    const inline = /^\s*host\.congestion\s*=\s*(?:"([^"]*)"|'([^']*)')/.exec(line);
    if (inline && table === "") return inline[1] ?? inline[2];
  }
  return "none";
}

/** `dcqcn:paper,rpg_ai_rate=20` as its name, its preset, and its parameters. */
export function parseCongestion(text) {
  const [name, ...parts] = text.split(/[:,]/);
  const parameters = {};
  let preset = "";
  for (const part of parts) {
    const at = part.indexOf("=");
    if (at < 0) preset = part;
    else parameters[part.slice(0, at)] = part.slice(at + 1);
  }
  return { name, preset, parameters };
}

/** The reverse of `parseCongestion`. */
export function writeCongestion({ name, preset, parameters }) {
  const parts = [preset, ...Object.entries(parameters).map(([key, value]) => `${key}=${value}`)].filter(Boolean);
  return parts.length === 0 ? name : `${name}:${parts.join(",")}`;
}

/**
 * The settings of the controls. `own` is the algorithm of the text. `chosen` is the selected one with its
 * preset, or "" for that of the text. `changed` has the values of the parameters that a person moved; `more`
 * is the text of the other settings, one `KEY=VALUE` in each line. Throws an error that names a wrong line.
 */
export function settingsOf({ own, chosen, changed, more }) {
  const base = parseCongestion(chosen || own);
  const text = writeCongestion({ ...base, parameters: { ...base.parameters, ...changed } });
  return [...text === own ? [] : [["host.congestion", text]], ...readLines(more)];
}

/** Reads `KEY=VALUE` lines. */
export function readLines(text) {
  const sets = [];
  text.split("\n").forEach((line, index) => {
    const trimmed = line.trim();
    if (trimmed === "") return;
    const at = trimmed.indexOf("=");
    if (at < 1) throw new Error(`line ${index + 1} of the other settings is not KEY=VALUE: ${trimmed}`);
    sets.push([trimmed.slice(0, at).trim(), trimmed.slice(at + 1).trim()]);
  });
  return sets;
}

/** A word for a POSIX shell. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** The command that runs the same simulation. `scenario` is a shipped name or the name of a file. */
export function command(scenario, sets) {
  const options = sets.flatMap(([key, value]) => ["--set", `${key}=${value}`]);
  return ["roce", "sim", scenario, ...options].map(quoted).join(" ");
}

/** Sets as one value of the fragment, and back. */
export const encodeSets = (sets) => sets.map(([key, value]) => `${key}=${value}`).join("\n");
export const decodeSets = readLines;
