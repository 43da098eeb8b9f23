//! The keys of `[storage]`, and the headers of a web server's requests.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use forebay_keys::{
    ConfigError, Keys, Located, Section, SourceLocation, TimeSpan, Value, expand_header,
};

forebay_keys::keys! {
    /// The location and the credentials of a URL's data.
    pub struct RemoteKeys = "storage" {
        /// the server, such as `"https://minio.lab:9000"`; with the bucket in the path unless `virtual_hosted`
        pub endpoint: String, "", absent("`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the profile's, else the provider's");
        /// of Azure
        pub account: String, "", absent("`AZURE_STORAGE_ACCOUNT_NAME`");
        /// of S3
        pub region: String, "", absent("`AWS_REGION`, the profile's, else `us-east-1`");
        /// a section of `~/.aws/credentials` and `~/.aws/config`: keys or `credential_process`, region, `endpoint_url`
        pub profile: String, "", absent("`AWS_PROFILE`, else `default` where no keys are set");
        /// ask without credentials, as public buckets allow
        pub anonymous: bool, "", default(false);
        /// headers of each request to a web server; each value names a variable, as in `"Bearer ${TOKEN}"`, and is neither
        /// printed nor saved
        pub headers: Headers, "", default(Vec::new(), "none");
        /// objects never change under their names: the cache keeps objects without a known tag by name, without a request
        pub immutable: bool, "", default(false);
        /// a server that sends nothing for so long has failed, and is asked again
        pub stall: TimeSpan, "", default(Duration::from_secs(5));
        /// plain `http://` also to other machines
        pub allow_http: bool, "", default(false);
        /// requests are spread so that all readers of a process send a server at most so many; with
        /// several processes, as many times as much
        pub requests_per_second: Rate, "", absent("no limit");
        /// the endpoint's host names the bucket
        pub virtual_hosted: bool, "", default(false);
    }
}

forebay_keys::kinds! {
    /// Requests a second.
    [pub] Rate as f64: "a number above 0", type "a number above 0";
    read(value) { <f64 as forebay_keys::Kind>::read(value).filter(|rate| *rate > 0.0) }
    write(out) { Value::Float(*out) }
    schema { "type": "number", "exclusiveMinimum": 0 }

    /// Names and values of headers, as written.
    [pub] Headers as Vec<(String, String)>: "a table of strings that each name a variable, such as { Authorization = \"Bearer ${TOKEN}\" }", type "a table of strings";
    read(value) {
        let Value::Table(entries) = value else { return None };
        let header = |(name, located): &(String, Located)| {
            let text = located.value.as_text().filter(|text| text.contains("${"))?;
            HeaderName::try_from(name.as_str()).ok()?;
            Some((name.clone(), text.to_owned()))
        };
        entries.iter().map(header).collect()
    }
    write(out) {
        let entry = |(name, text): &(String, String)| (name.clone(), Value::String(text.clone()).into());
        Value::Table(out.iter().map(entry).collect())
    }
    // A value may be a secret: it is not repeated.
    refusal(_) { Some(" must be a table of strings that each name a variable, such as { Authorization = \"Bearer ${TOKEN}\" }: a configuration is printed and saved".to_owned()) }
    schema { "type": "object", "additionalProperties": { "type": "string", "pattern": "\\$\\{" } }
}

impl RemoteKeys {
    /// The keys of a configuration.
    ///
    /// # Errors
    /// An unknown key, or a value of the wrong kind.
    pub(super) fn of(section: &Section) -> Result<Self, ConfigError> {
        Self::read(&mut section.clone())
    }

    /// The headers with their variables filled in.
    ///
    /// # Errors
    /// A variable is not set, or a value cannot be a header; values are not repeated.
    pub(super) fn header_map(&self) -> Result<HeaderMap, String> {
        let mut map = HeaderMap::new();
        for (name, text) in &self.headers {
            let path = format!("storage.headers.{name}");
            let location = SourceLocation::default();
            let text = expand_header(text, &path, &location).map_err(|error| error.message)?;
            let mut value = HeaderValue::try_from(text)
                .map_err(|_| format!("`{path}` has characters that a header cannot have"))?;
            value.set_sensitive(true);
            let name = HeaderName::try_from(name.as_str()).map_err(|error| error.to_string())?;
            map.append(name, value);
        }
        Ok(map)
    }
}
