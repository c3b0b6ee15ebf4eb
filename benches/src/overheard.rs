//! What our store sends to Redis. It is overheard and not written down here a second time, so that peers
//! which are to send the same do so whatever becomes of the scripts.

use redis::{Client, Cmd, Value};

/// A call of one of the scripts with two counters, by address and by user and address.
#[derive(Clone, Debug)]
pub struct Call {
    hash: String,
    /// What follows the token.
    arguments: Vec<String>,
}

impl Call {
    /// The calls that are made to a server meanwhile.
    pub fn overhear(url: &str, meanwhile: impl FnOnce()) -> Vec<Self> {
        const END: &str = "that was all";
        let client = Client::open(url).expect("a URL");
        let connect = || client.get_connection().expect("a connection");
        let mut ear = connect();
        let monitor = redis::cmd("MONITOR").get_packed_command();
        ear.send_packed_command(&monitor).expect("sent");
        let _ = ear.recv_response().expect("an answer");
        meanwhile();
        let end = redis::cmd("ECHO").arg(END).exec(&mut connect());
        end.expect("an answer");

        let mut calls = Vec::new();
        loop {
            let Ok(Value::SimpleString(line)) = ear.recv_response() else {
                panic!("MONITOR says something else than lines");
            };
            if line.contains(END) {
                return calls;
            }
            calls.extend(Self::from_line(&line));
        }
    }

    /// From a line like `1700000000.5 [0 127.0.0.1:5000] "EVALSHA" "hash" "2" …`. What scripts call is
    /// there too; they say `lua` in place of an address.
    fn from_line(line: &str) -> Option<Self> {
        let (_, words) = line.split_once("] \"")?;
        // One quotation mark ends the last word, which may be empty.
        let words: Vec<_> = words.strip_suffix('"')?.split("\" \"").collect();
        match *words.as_slice() {
            ["EVALSHA", hash, "2", _, _, _token, ref arguments @ ..] => Some(Self {
                hash: hash.to_owned(),
                arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            }),
            _ => None,
        }
    }

    /// The same call of another script.
    pub fn of_script(&self, hash: String) -> Self {
        Self {
            hash,
            ..self.clone()
        }
    }

    /// The call for these counters and this token.
    pub fn command(&self, keys: &[String; 2], token: &[u8]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(2).arg(keys).arg(token);
        command.arg(&self.arguments);
        command
    }

    /// The same as words of a command line.
    pub fn words(&self, keys: &[String; 2], token: &str) -> Vec<String> {
        let begin = ["EVALSHA", &self.hash, "2", &keys[0], &keys[1], token];
        let words = begin.into_iter().map(str::to_owned);
        words.chain(self.arguments.iter().cloned()).collect()
    }
}
