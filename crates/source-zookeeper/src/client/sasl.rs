//! DIGEST-MD5 of RFC 2831, as far as ZooKeeper has it: both sides prove that they know a password without saying it.

use md5::compute;

use crate::source::Login;

/// What ZooKeeper's servers call themselves.
const SERVICE: &str = "zookeeper/zk-sasl-md5";

/// One exchange: what the server asked, and what we made up.
pub(super) struct Digest<'a> {
    login: &'a Login,
    realm: String,
    nonce: String,
    /// What nobody can know before.
    own_nonce: String,
}

impl<'a> Digest<'a> {
    /// Reads a challenge; nothing if it is none that can be answered.
    pub(super) fn read(login: &'a Login, challenge: &[u8], own_nonce: String) -> Option<Self> {
        let text = std::str::from_utf8(challenge).ok()?;
        let fields = fields(text);
        let find = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let (realm, nonce) = (find("realm").unwrap_or_default(), find("nonce")?);
        let can_be_answered = find("algorithm").is_some_and(|name| name == "md5-sess")
            && find("qop").is_none_or(|all| all.split(',').any(|one| one.trim() == "auth"));
        can_be_answered.then_some(Self { login, realm, nonce, own_nonce })
    }

    pub(super) fn response(&self) -> String {
        let Self { login, realm, nonce, own_nonce } = self;
        let proof = self.proof("AUTHENTICATE");
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        format!(
            "charset=utf-8,username=\"{}\",realm=\"{}\",nonce=\"{}\",nc=00000001,cnonce=\"{own_nonce}\",\
             digest-uri=\"{SERVICE}\",maxbuf=65536,response={proof},qop=auth",
            quoted(&login.user),
            quoted(realm),
            quoted(nonce),
        )
    }

    /// Does the server know the password too?
    pub(super) fn is_proved_by(&self, answer: &[u8]) -> bool {
        let expected = format!("rspauth={}", self.proof(""));
        answer == expected.as_bytes()
    }

    fn proof(&self, way: &str) -> String {
        let Self { login, realm, nonce, own_nonce } = self;
        let who = compute(format!("{}:{realm}:{}", login.user, login.password));
        let session = [&who.0[..], format!(":{nonce}:{own_nonce}").as_bytes()].concat();
        let (session, way) = (compute(session), compute(format!("{way}:{SERVICE}")));
        format!("{:x}", compute(format!("{session:x}:{nonce}:00000001:{own_nonce}:auth:{way:x}")))
    }
}

/// `key=value,key="value"`; within quotes, what follows a backslash is meant as it is.
fn fields(text: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut rest = text.chars().peekable();
    while rest.peek().is_some() {
        let key: String = rest.by_ref().take_while(|c| *c != '=').collect();
        let mut value = String::new();
        let is_quoted = rest.next_if_eq(&'"').is_some();
        while let Some(c) = rest.next() {
            match c {
                '\\' if is_quoted => value.extend(rest.next()),
                '"' if is_quoted => {
                    // Up to the next comma there is nothing that means anything.
                    let _nothing = rest.by_ref().find(|c| *c == ',');
                    break;
                }
                ',' if !is_quoted => break,
                c => value.push(c),
            }
        }
        all.push((key.trim().to_owned(), value));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Digest, fields};
    use crate::source::Login;

    fn login() -> Login {
        Login { user: "bob".into(), password: "secret".into() }
    }

    const CHALLENGE: &str =
        r#"realm="zk-sasl-md5",nonce="a\"b,c",charset=utf-8,algorithm=md5-sess,qop="auth,auth-int""#;

    #[test]
    fn a_challenge_is_read_and_answered() {
        let login = login();
        let digest = Digest::read(&login, CHALLENGE.as_bytes(), "own".into()).unwrap();
        assert_eq!((digest.realm.as_str(), digest.nonce.as_str()), ("zk-sasl-md5", "a\"b,c"));
        let response = digest.response();
        assert!(response.contains(r#"nonce="a\"b,c""#) && !response.contains("secret"), "{response}");
        assert!(digest.is_proved_by(format!("rspauth={}", digest.proof("")).as_bytes()));
        assert!(!digest.is_proved_by(b"rspauth=0") && !digest.is_proved_by(b""));
        let proof = fields(&response).into_iter().find(|(key, _)| key == "response").unwrap().1;
        assert_eq!((proof.len(), proof == digest.proof("AUTHENTICATE")), (32, true));
    }

    #[test]
    fn what_is_no_challenge_is_not_answered() {
        let login = login();
        for challenge in
            ["", "nonce", "nonce=x,algorithm=md5", "nonce=x,algorithm=md5-sess,qop=auth-conf", "=\"\\"]
        {
            assert!(Digest::read(&login, challenge.as_bytes(), "own".into()).is_none(), "{challenge}");
        }
        assert!(Digest::read(&login, &[0xff], "own".into()).is_none());
    }
}
