//! The Markdown of lessons: its parts, and their HTML.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd, html::push_html};
use serde::Serialize;

/// A task as the page shows it.
#[derive(Debug, Serialize)]
pub(super) struct Task {
    number: usize,
    html: String,
    kind: Kind,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    choices: Vec<String>,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Number,
    Hex,
    Text,
    Choice,
}

const TASKS: &str = "\n## Tasks\n";
const TASK: &str = "\n### Task ";
const CHOICE: &str = "- [ ] ";

/// Returns the title of a page.
pub(super) fn title(page: &str) -> String {
    page.lines().next().unwrap_or_default().trim_start_matches(['#', ' ']).to_owned()
}

/// Returns the text of a page after its title.
pub(super) fn body(page: &str) -> &str {
    page.split_once('\n').map_or("", |(_, body)| body)
}

/// Returns the number in front of the first "minutes", or 0.
pub(super) fn minutes(page: &str) -> u32 {
    let before = page.split_once("minutes").map_or("", |(before, _)| before);
    before.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the part of a lesson before its tasks as HTML.
pub(super) fn lesson_html(page: &str) -> String {
    let body = body(page);
    html(body.split_once(TASKS).map_or(body, |(text, _)| text))
}

/// Returns the tasks of a lesson.
pub(super) fn tasks(page: &str) -> Vec<Task> {
    let all = page.split_once(TASKS).map_or("", |(_, tasks)| tasks);
    // The first task may follow the heading without an empty line.
    let all = format!("\n{all}");
    let each = all.split(TASK).skip(1).filter_map(|task| task.split_once('\n'));
    each.filter_map(|(number, text)| Some(task(number.trim().parse().ok()?, text))).collect()
}

fn task(number: usize, text: &str) -> Task {
    let (question, choices) = split_choices(text);
    let kind = match choices.is_empty() {
        false => Kind::Choice,
        true => kind(&question),
    };
    Task { number, html: html(&question), kind, choices }
}

/// Returns the form of the answer. The line that begins with "Answer:" names it.
fn kind(question: &str) -> Kind {
    let line = question.lines().find(|line| line.starts_with("Answer:")).unwrap_or_default();
    match line {
        line if line.contains("hexadecimal digits") => Kind::Hex,
        line if line.contains("number") => Kind::Number,
        _ => Kind::Text,
    }
}

/// Returns the text of a task without its choices, and the choices without marks.
fn split_choices(text: &str) -> (String, Vec<String>) {
    let mut question = String::new();
    let mut choices: Vec<String> = Vec::new();
    for line in text.lines() {
        let continues = line.starts_with("  ") && !choices.is_empty();
        if let Some(choice) = line.strip_prefix(CHOICE) {
            choices.push(choice.replace('`', ""));
        } else if let (true, Some(last)) = (continues, choices.last_mut()) {
            last.push(' ');
            last.push_str(&line.trim().replace('`', ""));
        } else {
            question.push_str(line);
            question.push('\n');
        }
    }
    (question, choices)
}

/// Converts Markdown to HTML for a part of the page. Headings move one level down, because the page has the
/// title. A link to another page of the documentation becomes its text, because the page is a single file.
pub(super) fn html(markdown: &str) -> String {
    let mut is_link_open = false;
    let events = Parser::new_ext(markdown, Options::ENABLE_TABLES).filter_map(move |event| match event {
        Event::Start(Tag::Heading { level, id, classes, attrs }) => {
            Some(Event::Start(Tag::Heading { level: below(level), id, classes, attrs }))
        }
        Event::End(TagEnd::Heading(level)) => Some(Event::End(TagEnd::Heading(below(level)))),
        Event::Start(Tag::Link { ref dest_url, .. }) => {
            is_link_open = dest_url.starts_with("https://");
            is_link_open.then_some(event)
        }
        Event::End(TagEnd::Link) => is_link_open.then_some(event),
        // The texts contain no HTML. If one did, the page would show it as text.
        Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
        other => Some(other),
    });
    let mut out = String::new();
    push_html(&mut out, events);
    out
}

const fn below(level: HeadingLevel) -> HeadingLevel {
    match level {
        HeadingLevel::H1 => HeadingLevel::H2,
        HeadingLevel::H2 => HeadingLevel::H3,
        HeadingLevel::H3 => HeadingLevel::H4,
        HeadingLevel::H4 => HeadingLevel::H5,
        HeadingLevel::H5 | HeadingLevel::H6 => HeadingLevel::H6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A title\n\nThis takes 20 minutes.\n\n## One\n\nSee [ACK](../reference/glossary.md) and \
        [a page](https://example.org/x).\n\n## Tasks\n\n### Task 1\n\nHow long?\n\nAnswer: a number of bytes.\n\n\
        ### Task 2\n\nWhich?\n\n- [ ] the `BTH`\n- [ ] a long\n  one\n\n### Task 3\n\nAnswer: 8 hexadecimal digits.\n";

    #[test]
    fn a_page_is_split() {
        assert_eq!(title(PAGE), "A title");
        assert_eq!(minutes(PAGE), 20);
        let html = lesson_html(PAGE);
        assert!(html.contains("<h3>One</h3>") && !html.contains("Task"), "{html}");
        assert!(html.contains("See ACK and <a href=\"https://example.org/x\">a page</a>."), "{html}");
        let tasks = tasks(PAGE);
        let forms: Vec<_> = tasks.iter().map(|task| (task.number, task.kind)).collect();
        assert_eq!(forms, [(1, Kind::Number), (2, Kind::Choice), (3, Kind::Hex)]);
        assert_eq!(tasks[1].choices, ["the BTH", "a long one"]);
        assert!(!tasks[1].html.contains("BTH"), "{}", tasks[1].html);
    }

    #[test]
    fn tags_in_a_text_are_shown_and_not_used() {
        assert_eq!(html("a <b>word</b>"), "<p>a &lt;b&gt;word&lt;/b&gt;</p>\n");
    }
}
