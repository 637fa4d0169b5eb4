//! A registration as few bytes: shelves keep fifty thousand instances, and look at them again after a loss only.

use super::Registration;

pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    pub(crate) fn new(registration: &Registration) -> Self {
        // Texts, numbers and lists of them can always be written.
        Self(serde_json::to_vec(registration).unwrap_or_default().into_boxed_slice())
    }

    pub(crate) fn open(&self) -> Registration {
        serde_json::from_slice(&self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Packed;
    use crate::registration::{Instance, InstancePort, Registration};

    #[test]
    fn what_is_packed_is_found_again() {
        let ports = vec![InstancePort { number: 80, service_port: Some(8080), ..InstancePort::default() }];
        let metadata = [("version".to_owned(), "v1".to_owned())].into();
        let one =
            Instance { id: "a".into(), address: "10.0.0.1".into(), ports, metadata, ..Instance::default() };
        let ill = Instance { id: "b".into(), is_unhealthy: true, weight: 7, ..Instance::default() };
        let registration = Registration {
            name: "shop".into(),
            hosts: vec!["shop.example".into()],
            instances: vec![one, ill],
            unreadable: vec![("c".into(), "why".into())],
            trouble: Some("why".into()),
            ..Registration::default()
        };
        assert_eq!(Packed::new(&registration).open(), registration);
    }
}
