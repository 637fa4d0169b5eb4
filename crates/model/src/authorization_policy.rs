/// Who may call what.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AuthorizationPolicy {}
