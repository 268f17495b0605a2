// Maps page-table entries to their turns. Entries are in the order of the visible tokens.

/** Add `{first, last, owners}` to each entry: indexes of visible tokens, and turn labels. */
export function withOwners(session) {
  const spans = visibleSpans(session);
  let at = 0;
  return session.page_table.map((entry) => {
    const [first, after] = [at, at + entry.last - entry.first + 1];
    at = after;
    const owners = spans.filter((span) => span.first < after && span.after > first).map((span) => span.name);
    return { ...entry, from: first, to: after - 1, owners };
  });
}

/** The parts of a session's turns with names: `{...turn, name, number}`. */
export function namedTurns(turns) {
  const numbers = new Map();
  return turns.map((turn) => {
    if (turn.role !== "system" && !numbers.has(turn.response_id)) numbers.set(turn.response_id, numbers.size + 1);
    const number = turn.role === "system" ? 0 : numbers.get(turn.response_id);
    return { ...turn, number, name: number ? `turn ${number} ${turn.role}` : "instructions" };
  });
}

function visibleSpans(session) {
  const kept = namedTurns(session.turns).filter((turn) => turn.kept > 0);
  const told = kept.reduce((sum, turn) => sum + turn.kept, 0);
  const parts = kept.map((turn) => ({ name: turn.name, tokens: turn.kept }));
  const summary = session.tokens_kept - told; // follows the system prefix and belongs to no turn
  if (summary > 0 && session.state !== "running") {
    parts.splice(kept[0]?.role === "system" ? 1 : 0, 0, { name: "summary", tokens: summary });
  }
  let at = 0;
  const spans = parts.map(({ name, tokens }) => {
    at += tokens;
    return { name, first: at - tokens, after: at };
  });
  return [...spans, { name: "the running turn", first: at, after: Infinity }];
}
