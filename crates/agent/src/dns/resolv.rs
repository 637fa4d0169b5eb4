use std::net::{IpAddr, SocketAddr};

const PORT: u16 = 53;

/// What resolv.conf says, as far as it matters here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Resolv {
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) search: Vec<String>,
}

impl Resolv {
    /// As resolv.conf(5): the last list of domains counts.
    pub(crate) fn read(text: &str) -> Self {
        let mut resolv = Self::default();
        for line in text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default()) {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let ip = words.next().and_then(|word| word.split('%').next()?.parse::<IpAddr>().ok());
                    resolv.servers.extend(ip.map(|ip| SocketAddr::new(ip, PORT)));
                }
                Some("search") => resolv.search = words.map(str::to_owned).collect(),
                Some("domain") => resolv.search = words.take(1).map(str::to_owned).collect(),
                _ => (),
            }
        }
        resolv
    }
}

#[cfg(test)]
mod tests {
    use super::Resolv;

    #[test]
    fn servers_and_domains_are_read() {
        let text = "# all\ndomain x\nsearch a.b c.\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nnameserver x\noptions ndots:5\n";
        let resolv = Resolv::read(text);
        assert_eq!(resolv.search, ["a.b", "c."]);
        assert_eq!(resolv.servers, ["10.0.0.1:53".parse().unwrap(), "[fe80::1]:53".parse().unwrap()]);
    }
}
