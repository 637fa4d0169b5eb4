//! Objects are changed by reading them and putting them back. That asks for `update` only: roles of Istio's own chart do not
//! allow `patch` for what is written there.

use pilot_source_kube::{Call, CallError, Client};
use serde_json::{Value, json};

/// What stands there; nothing if nothing does.
pub(crate) async fn read(client: &Client, path: &str) -> Result<Option<Value>, CallError> {
    match client.call(Call::get(path)).await {
        Ok(body) => parsed(&body).map(Some),
        Err(error) if error.status() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Changes what stands there. The version that is put back with it makes sure that nobody wrote in between: then it is 409.
pub(crate) async fn change(
    client: &Client,
    path: &str,
    change: impl FnOnce(&mut Value) + Send,
) -> Result<(), CallError> {
    let before = parsed(&client.call(Call::get(path)).await?)?;
    let mut after = before.clone();
    change(&mut after);
    if after == before {
        return Ok(());
    }
    put(client, path, &after).await
}

pub(crate) async fn put(client: &Client, path: &str, object: &Value) -> Result<(), CallError> {
    client.call(Call::put(path, object.to_string())).await.map(|_| ())
}

/// Sets a field; what it stands in is made if it is not there.
pub(crate) fn set(object: &mut Value, path: &[&str], value: Value) {
    let mut place = object;
    for field in path {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[*field];
    }
    *place = value;
}

fn parsed(body: &[u8]) -> Result<Value, CallError> {
    serde_json::from_slice(body).map_err(|error| CallError::Broken(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::set;

    #[test]
    fn what_a_field_stands_in_is_made() {
        let mut object = json!({"metadata": {"name": "a", "labels": null}});
        set(&mut object, &["metadata", "labels", "x"], json!("y"));
        set(&mut object, &["data", "k"], json!("v"));
        assert_eq!(object, json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"k": "v"}}));
        let mut list = json!([1]);
        set(&mut list, &["a"], json!(1));
        assert_eq!(list, json!({"a": 1}));
    }
}
