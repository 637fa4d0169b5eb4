/// Code that proxies run on requests.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WasmPlugin {}
