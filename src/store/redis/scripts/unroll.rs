//! Loops over the counters of a policy, written out.
//!
//! Most attempts are decided by the part of a script that comes before `counters.lua`. Each table in it, and each
//! lookup in one, would be made anew by each call, and takes Lua as long as some of the commands. In a text of its
//! own, a policy has a copy of the body for each counter in place of a loop, its numbers in place of a column of
//! numbers, and a local for each counter in place of a table of them:
//!
//! ```lua
//! local usage = {}                            local usage_1, usage_2
//! for i = 1, count do                         do
//!   usage[i] = call('ZCARD', KEYS[i])           local i = 1
//!   is_full = is_full or usage[i] >= limit[i]   usage_1 = call('ZCARD', KEYS[i])
//! end                                           is_full = is_full or usage_1 >= 25
//! return unpack(usage, 1, count)              end
//!                                             do …
//!                                             return usage_1, usage_2
//! ```

use super::INCLUDE_COUNTERS;

/// Of more counters a text would be long, and Lua permits 200 locals.
pub(super) const MAX: usize = 8;

/// What a fast path looks up for each counter: a name, and the values.
pub(super) type Column = (&'static str, Vec<String>);

/// Writes out the loops of a script before `counters.lua`.
pub(super) fn unroll(source: &str, count: usize, columns: &[Column]) -> String {
    let (fast, general) = source.split_at(source.find(INCLUDE_COUNTERS).unwrap_or(0));
    let locals = |table: &str| join((1..=count).map(|i| format!("{table}_{i}")));
    let keys = join((1..=count).map(|i| format!("KEYS[{i}]")));
    let mut tables: Vec<&str> = Vec::new();
    let mut text = String::with_capacity(2 * source.len());
    let mut lines = fast.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if let Some(names) = code.strip_prefix("-- insert ") {
            let is_column = |name: &str| columns.iter().any(|(column, _)| *column == name);
            let others = names.split(", ").filter(|name| !is_column(name));
            text += "-- insert ";
            text += &join(others.map(str::to_owned));
        } else if let Some(names) = new_tables(code) {
            tables.extend(names.split(", "));
            text += "local ";
            text += &join(names.split(", ").map(locals));
        } else if code == "for i = 1, count do" {
            let end = line.replace(code, "end");
            let body = lines.by_ref().take_while(|line| *line != end);
            let body = body.collect::<Vec<_>>().join("\n");
            let turns = (1..=count).map(|i| turn(&body, i, &tables, columns));
            text += &turns.collect::<Vec<_>>().join("\n");
        } else {
            let mut line = line.replace("unpack(KEYS, 1, count)", &keys);
            for table in &tables {
                line = line.replace(&format!("unpack({table}, 1, count)"), &locals(table));
            }
            text += &line;
        }
        text.push('\n');
    }
    text + general
}

/// A loop's body for the counter in this position, from 1.
fn turn(body: &str, i: usize, tables: &[&str], columns: &[Column]) -> String {
    let mut body = body.to_owned();
    for (column, values) in columns {
        body = body.replace(&format!("{column}[i]"), &values[i - 1]);
    }
    for table in tables {
        body = body.replace(&format!("{table}[i]"), &format!("{table}_{i}"));
    }
    format!("do\nlocal i = {i}\n{body}\nend")
}

/// The names of new tables, of a line that declares nothing else.
fn new_tables(code: &str) -> Option<&str> {
    let (names, values) = code.strip_prefix("local ")?.split_once(" = ")?;
    let is_new = values.split(", ").all(|value| value == "{}");
    is_new.then_some(names)
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_written_out_before_the_general_part() {
        let source = "\
-- insert count, limit
local usage, held = {}, {}
if call('EXISTS', unpack(KEYS, 1, count)) then
  for i = 1, count do
    if limit[i] > 1 then
      usage[i] = call('ZCARD', KEYS[i])
    end
  end
end
local held = { unpack(held, 1, count) }
-- include counters.lua
local reply = {}
for i = 1, count do
  reply[i] = held[i]
end
";
        let columns = [("limit", vec!["25".to_owned(), "5".to_owned()])];
        assert_eq!(
            unroll(source, 2, &columns),
            "\
-- insert count
local usage_1, usage_2, held_1, held_2
if call('EXISTS', KEYS[1], KEYS[2]) then
do
local i = 1
    if 25 > 1 then
      usage_1 = call('ZCARD', KEYS[i])
    end
end
do
local i = 2
    if 5 > 1 then
      usage_2 = call('ZCARD', KEYS[i])
    end
end
end
local held = { held_1, held_2 }
-- include counters.lua
local reply = {}
for i = 1, count do
  reply[i] = held[i]
end
"
        );
    }
}
