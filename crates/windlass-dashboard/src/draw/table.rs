//! The values of a drawing as a table, for people who do not see it or want to copy them.

use crate::markup::{Markup, escaped};

/// Writes a table behind a line that opens it. The first column names the row; the others are
/// numbers, which the style aligns: a class for each of many cells would be most of the page.
pub fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Markup {
    let mut html = String::from(
        r#"<details class="as-table"><summary>Show as table</summary><div class="scroll" tabindex="0"><table class="tbl"><thead><tr>"#,
    );
    for head in heads {
        html.push_str(&format!(r#"<th scope="col">{}</th>"#, escaped(head)));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for cell in &row {
            html.push_str(&format!("<td>{}</td>", escaped(cell)));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></details>");
    Markup(html)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_heads_and_escapes_its_cells() {
        let table = table(
            &["Time", "Died"],
            [vec!["<12:00>".to_owned(), "3/s".to_owned()]],
        );
        let html = table.to_string();
        assert!(html.contains(r#"<th scope="col">Died</th>"#), "{html}");
        assert!(
            html.contains("<td>&lt;12:00&gt;</td><td>3/s</td>"),
            "{html}"
        );
    }
}
