//! Expressions of GitHub: `inputs.run != '' && always()`.

use anyhow::{Context as _, bail, ensure};

/// The values that an expression may name.
pub(super) trait Context {
    /// Returns the value of a name such as `inputs.run`; that of an unknown property is empty.
    ///
    /// # Errors
    ///
    /// This runner does not know the context.
    fn value(&self, name: &str) -> anyhow::Result<String>;

    /// Returns whether no step has failed so far.
    fn is_successful(&self) -> bool;
}

/// Replaces each `${{ EXPRESSION }}` in a text.
pub(super) fn expand(text: &str, context: &dyn Context) -> anyhow::Result<String> {
    let mut parts = text.split("${{");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (expression, rest) =
            part.split_once("}}").with_context(|| format!("}}}} is missing in {text}"))?;
        expanded.push_str(&evaluate(expression, context)?);
        expanded.push_str(rest);
    }
    Ok(expanded)
}

/// Returns whether a step with this condition runs. Without a function of the status, it runs only if no step
/// has failed.
pub(super) fn holds(condition: &str, context: &dyn Context) -> anyhow::Result<bool> {
    let inner = condition.trim();
    let inner = inner.strip_prefix("${{").and_then(|rest| rest.strip_suffix("}}")).unwrap_or(inner);
    let names_status = ["always()", "failure()", "success()", "cancelled()"];
    if !names_status.iter().any(|name| inner.contains(name)) && !context.is_successful() {
        return Ok(false);
    }
    Ok(inner.trim().is_empty() || is_true(&evaluate(inner, context)?))
}

/// The strings that count as false.
fn is_true(value: &str) -> bool {
    !["", "false", "0"].contains(&value)
}

/// Returns the value of an expression without parentheses.
fn evaluate(expression: &str, context: &dyn Context) -> anyhow::Result<String> {
    for (operator, ends_if) in [("||", true), ("&&", false)] {
        if let Some((left, right)) = expression.split_once(operator) {
            let left = evaluate(left, context)?;
            return if is_true(&left) == ends_if { Ok(left) } else { evaluate(right, context) };
        }
    }
    for (operator, is_equal) in [("!=", false), ("==", true)] {
        if let Some((left, right)) = expression.split_once(operator) {
            let (left, right) = (evaluate(left, context)?, evaluate(right, context)?);
            return Ok((left.eq_ignore_ascii_case(&right) == is_equal).to_string());
        }
    }
    let name = expression.trim();
    if let Some(literal) = name.strip_prefix('\'') {
        let literal = literal.strip_suffix('\'').with_context(|| format!("{name} has one quote"))?;
        ensure!(!literal.contains('\''), "{name} contains a quote");
        return Ok(literal.to_owned());
    }
    match name {
        "always()" => Ok("true".to_owned()),
        "cancelled()" => Ok("false".to_owned()),
        "success()" => Ok(context.is_successful().to_string()),
        "failure()" => Ok((!context.is_successful()).to_string()),
        _ if name.contains(['(', '!', '[', ' ']) => bail!("this runner does not know the expression {name}"),
        _ => context.value(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(bool);

    impl Context for Named {
        fn value(&self, name: &str) -> anyhow::Result<String> {
            match name {
                "inputs.a" => Ok("one".to_owned()),
                "inputs.b" => Ok(String::new()),
                _ => bail!("unknown: {name}"),
            }
        }

        fn is_successful(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn texts_contain_values() {
        let expand = |text: &str| expand(text, &Named(true));
        assert_eq!(expand("x ${{ inputs.a }}-${{inputs.b || 'two'}} $y").unwrap(), "x one-two $y");
        assert_eq!(expand("${{ inputs.a == 'ONE' && inputs.a }}").unwrap(), "one");
        for wrong in ["${{ inputs.a", "${{ github.x }}", "${{ hashFiles('x') }}", "${{ 'it''s' }}"] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_step_runs_after_a_failure_only_if_its_condition_names_the_status() {
        let rows = [
            ("", true, false),
            ("inputs.a != ''", true, false),
            ("inputs.b != ''", false, false),
            ("failure()", false, true),
            ("${{ always() && inputs.a != '' }}", true, true),
            ("always() && inputs.b != ''", false, false),
        ];
        for (condition, after_success, after_failure) in rows {
            assert_eq!(holds(condition, &Named(true)).unwrap(), after_success, "{condition}");
            assert_eq!(holds(condition, &Named(false)).unwrap(), after_failure, "{condition}");
        }
    }
}
