"""Secrets in text: command lines, variables, lines of code and messages that a capture keeps, and that are shown to others.

Two things give a secret away: its own shape (a token of a service, a private key, a password in an address), wherever it stands, and the name before
it (`--pwd X`, `"api_key": "X"`, `Authorization: Bearer X`, `db.password=X`, `?token=X`). A name is read word by word, so that `max_tokens`,
`pad_token`, `author`, `num_key_heads` and `second_pass` are none. In code only what is quoted is hidden after such a name: `token = self.embed(x)` holds no secret.

When in doubt the text is hidden; what tells runs apart (rates, sizes, paths, names of models, hashes of commits) is not in doubt.
"""

import re

MASK = "***"
_LONGEST = 8000  # characters that are looked at; what stands behind them is left out
_KEPT = 2000  # of an argument

# ---- shapes

_BEGIN = r"(?<![A-Za-z0-9_-])"
_SERVICES = (
    r"hf_(?:[A-Za-z0-9]{20,}|[A-Za-z0-9]{8,}(?![A-Za-z0-9]*[_./-]))|api_org_[A-Za-z0-9]{20,}",  # Hugging Face; `hf_transformers.py` is a file
    r"sk-(?:(?:proj|ant|svcacct|admin|or|lf|None)-[A-Za-z0-9_-]{8,}|[A-Za-z0-9_-]{20,}|(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{8,})",  # OpenAI and its kin
    r"[srp]k_(?:live|test)_[A-Za-z0-9]{8,}|whsec_[A-Za-z0-9+/=]{16,}",  # Stripe
    r"gh[pousr]_[A-Za-z0-9]{8,}|github_pat_[A-Za-z0-9_]{8,}|gl(?:pat|dt|rt|ptt|soat|cbt|agent)-[A-Za-z0-9_.-]{8,}",  # GitHub, GitLab
    r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{8,}|xapp-[A-Za-z0-9-]{8,}",  # Slack
    r"(?:AKIA|ASIA|AROA|AIDA|AGPA|ABIA|ACCA)[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_.-]{10,}|GOCSPX-[A-Za-z0-9_-]{16,}|1//0[A-Za-z0-9_-]{20,}",
    r"eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_.=-]{10,})?",  # JWT, and JSON in base64, as Neptune's keys are
    r"wandb_v1_[A-Za-z0-9_-]{16,}|local-[0-9a-f]{40}",
    r"npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}|dckr_pat_[A-Za-z0-9_-]{16,}|do[opr]_v1_[0-9a-f]{20,}|dapi[0-9a-f]{32}(?:-[0-9])?",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|key-[0-9a-f]{32}|[AS]K[0-9a-f]{32}",  # SendGrid, Mailgun, Twilio
    r"(?:r8|gsk|tgp_v1|fw|xai|pplx|nvapi|csk|jina|pcsk|lsv2_pt|lsv2_sk|sntrys|sntryu|figd|glsa|shpat|shpss|shpca|ntn|lin_api|rpa|tvly)[_-][A-Za-z0-9_-]{16,}",
    r"hv[sbr]\.[A-Za-z0-9_-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{16,}|ATATT3[A-Za-z0-9_=-]{16,}|PMAK-[A-Za-z0-9-]{16,}|NRAK-[A-Z0-9]{16,}|sq0[a-z]{3}-[A-Za-z0-9_-]{16,}",
    r"sess-[A-Za-z0-9]{20,}|EAA[A-Z][A-Za-z0-9]{20,}|tskey-[a-z]+-[A-Za-z0-9-]{8,}|CLOJARS_[0-9a-f]{20,}",  # OpenAI, Facebook, Tailscale, Clojars
    r"[MNO][A-Za-z0-9]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}|[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",  # Discord, Telegram
)
_TOKEN = re.compile(_BEGIN + "(?:" + "|".join(_SERVICES) + ")")
_WEBHOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/|\.webhook\.office\.com/webhookb2/)[^\s\"'<>]+"
)
_PRIVATE = re.compile(
    r"-----BEGIN (?!CERTIFICATE-|PUBLIC KEY-|RSA PUBLIC KEY-)([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)"
    r"|---- BEGIN (SSH2 [A-Z ]*PRIVATE KEY) ----.*?(?:---- END \2 ----|\Z)|(?<=\nPrivate-Lines: )\d+\s.*",  # of OpenSSL, SSH2, PuTTY
    re.S,
)
_USER_IN_URL = re.compile(r"\b([A-Za-z][\w+.-]*://)([^/\s\"'<>?#]+)@")
_SLASH_IN_URL = re.compile(r"\b([A-Za-z][\w+.-]*://)[^\s/:@\"'<>?#]+:(?!\d+/)[^\s@\"'<>?#]+@")  # a password that somebody forgot to encode
_ORACLE = re.compile(r"(\bjdbc:oracle:\w+:[^/\s@]+/)[^@\s]+@")
_CODE_IN_URL = re.compile(r"([?&](?:code|ticket)=)[^&#\s\"'<>]{8,}")  # what a login gives to a program
_DIGEST = re.compile(r"(\bDigest\s+)(?:\w+=(?:\\*\"[^\"\\]*\\*\"|[^\s,\"'\\]+)(?:\s*,\s*)?)+")
_MACHINE = re.compile(r"(\b(?:machine\s+\S+|default)\s[^|;&]{0,200}?\bpassword\s+)\S+")  # .netrc
_USER_ALONE = re.compile(r"(?<![\w./:@-])([A-Za-z][\w.-]*):(?![\d]+@)([^\s:/@\"',;=]{3,})@(?=[\w-]+(?:\.[\w-]+)*(?:[:/\s]|$))")
_SCHEME = re.compile(r"\b(Bearer|Basic|Digest|Negotiate|ApiKey|Token)(\s+)(?=[^\s]*[0-9=._~+/-]|[A-Za-z]{16,})([A-Za-z0-9._~+/=-]{8,})")
_HEX_KEY = re.compile(r"(?<![0-9A-Za-z/@_])[0-9a-f]{40}(?![0-9A-Za-z/_])")  # of Weights & Biases; a commit looks the same
_COMMIT = re.compile(
    r"(?:commit|revision|rev|sha1?|hash|git|ref|head|checksum|digest|snapshot|tree|branch|tag|version|checkout|parent|fingerprint|etag|id)\W{0,4}\Z",
    re.I,
)


def _user(match):
    scheme, user = match.groups()
    return match.group() if ":" not in user and scheme.lower().endswith(("ssh://", "sftp://")) else scheme + MASK + "@"


def _hex_key(match):
    return match.group() if _COMMIT.search(match.string[max(0, match.start() - 24) : match.start()]) else MASK


def _without_shapes(text):
    text = _PRIVATE.sub(MASK, text)
    text = _SLASH_IN_URL.sub(r"\1" + MASK + "@", _USER_IN_URL.sub(_user, text))
    text = _ORACLE.sub(r"\1" + MASK + "@", _USER_ALONE.sub(r"\1:" + MASK + "@", text))
    text = _MACHINE.sub(r"\1" + MASK, _DIGEST.sub(r"\1" + MASK, _CODE_IN_URL.sub(r"\1" + MASK, text)))
    text = _WEBHOOK.sub(r"\1" + MASK, text)
    text = _SCHEME.sub(r"\1\2" + MASK, text)
    return _HEX_KEY.sub(_hex_key, _TOKEN.sub(MASK, text))


# ---- names

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = frozenset(
    "password passwords passwd passwort passphrase pwd pw secret secrets credential credentials creds apikey apikeys accesskey privatekey secretkey authkey"
    " authtoken accesstoken refreshtoken apitoken apisecret authorization bearer jwt cookie cookies sessionid csrf xsrf otp totp pat dsn sas mnemonic sshpass".split()
)
_BEFORE_KEY = frozenset(
    "api access private secret signing sign encryption decryption service account master shared ssh storage subscription license licence client deploy app"
    " application aws azure gcp gcs s3 hf wandb openai anthropic comet neptune mlflow huggingface github gitlab ssl tls auth user admin webhook hmac aes rsa"
    " account functions host write read ingest project team org".split()
)
# Of `pad_token`, `next_token`: a token of text. Everything else before "token" makes it one that opens a door.
_OF_TEXT = frozenset(
    "pad padding eos bos unk sep cls mask image img audio video vision start end stop special first last next prev previous new per max min num n prompt"
    " begin eot eom sot fim prefix suffix middle think sys system decoder encoder forced tool text word sub class target source src tgt label blank space"
    " single each any one cur current current accepted draft sampled generated output input bonus top greedy vocab byte control added extra query context".split()
)
_BEFORE_PASS = frozenset(
    "db user admin root smtp mail mysql pg postgres redis ftp sftp ssh http https proxy login my sudo vpn wifi key store keystore imap ldap".split()
)
_BEFORE_WORDS = frozenset("seed recovery backup unlock wallet".split())  # of a wallet, or to come in without the second factor
_TOKENS_OF_DOORS = frozenset("access api auth refresh bearer session secret hf github".split())
# The last word of a name that is about a secret and holds none: `password_file`, `token_type`, `auth_timeout`.
_ABOUT = frozenset(
    "file files path paths dir folder name names type types method mode len length size count num limit enabled enable required env var variable endpoint url"
    " uri host port provider version timeout expiry expires ttl loss weight weights id ids index idx dim dims dtype embedding embeddings embed emb embs rate ratio"
    " dropout prob probs logits mask masks hash policy manager store class cls func fn backend ring scanning scan dataset vocab per freq budget pos position".split()
)
_BEHIND = frozenset("value text string str plain raw b64 base64 hex new old current prod production dev test staging local default override".split())


def words_of(name):
    return [word.lower() for word in _WORD.findall(name)]


def _kind(name):
    """0: no secret follows this name; 1: a token, which may be a number or a flag instead; 2: one that is hidden whatever it is."""
    words = words_of(name)
    while len(words) > 1 and (words[-1] in _BEHIND or words[-1].isdigit()):
        words.pop()
    if not words:
        return 0
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "id" and before == "secret":
        return 2
    if last in _ABOUT:
        return 0
    if any(word in _ALWAYS or word.endswith(("password", "passwd", "passphrase")) for word in words):  # PGPASSWORD
        return 2
    if last in ("key", "keys"):
        return 2 if before in _BEFORE_KEY else 0
    if last == "token":
        return 0 if before in _OF_TEXT else 1
    if last == "tokens":
        return 1 if before in _TOKENS_OF_DOORS else 0
    if last in ("auth", "oauth", "signature", "sig"):
        return 1
    if last in ("phrase", "phrases", "words", "code", "codes"):
        return 2 if before in _BEFORE_WORDS else 0
    if last == "pass":
        return 2 if not before or before in _BEFORE_PASS else 0
    return 0


def is_secret_name(name):
    """Whether what such an option, variable or field holds is a secret."""
    return _kind(name) > 0


def _is_plain(kind, value):
    """A value that is none, whatever its name: nothing, a flag, a place to read it from, for a token a small number or <a word of the vocabulary>."""
    bare = re.sub(r"^(?:Bearer|Basic|Token) +(?=\{)", "", value.strip("\\\"' "))
    if (
        bare.lower() in ("", "true", "false", "none", "null", "yes", "no", "on", "off", MASK)
        or bare.startswith(("${", "$(", "%(", "{{", "<|"))
        or re.fullmatch(r"\{[^{}\"']*\}|[|>][+-]?", bare)
    ):
        return True
    return kind == 1 and bool(re.fullmatch(r"[+-]?[0-9.]{1,6}|<[^<>]*>|\[[A-Z]+\]|</?s>|basic|digest", bare))


# ---- a name, and what follows it

_NAME = r"-{0,2}[A-Za-z_$@+~][\w.@/+~-]{0,80}"
_QUOTED = r"(?P<q>\\*[\"'])(?P<in>(?:(?!(?P=q))(?:\\.|[^\\]|\\\Z))*)(?P<end>(?P=q)|\Z)"
_PAIR = re.compile(
    r"(?P<open>\\*[\"'])?(?<!\w)(?P<name>" + _NAME + r")(?P<close>\\*[\"'])?(?P<sub>\]|\))?"
    r"(?P<sep>\s*:\s*[A-Za-z_][\w.\[\], |]{0,60}?\s*=(?!=)\s*|\s*(?:=>|:=|[=!]=|=|:|%3[Dd])\s*(?:!!?[a-z]+\s+)?|\s*,\s*(?:b(?=[\"']))?|(?<=[\w])\s+)(?P<byte>[bfruBFRU]{1,2}(?=[\"']))?"
    r"(?:" + _QUOTED + r"|(?P<group>[\[({](?=\s*\\*[\"'])[^\])}]*[\])}]?)|(?P<bare>[^\s&;,\"'<>{}\[\]()\\]+))"
)
_HEADER = re.compile(
    r"(?P<name>\b(?:Proxy-)?Authorization|\bX-[A-Za-z-]*(?:Token|Key|Secret|Auth)|\bApi-Key|\b(?:Set-)?Cookie|\bPrivate-Token)(?P<sep>\\*[\"']?\s*:\s*)(?![\s\"'\\]|[bfruBFRU]{1,2}[\"'])(?P<in>[^\"'\\\r\n]+)",
    re.I,
)
_DEFAULT = re.compile(r"(\\*[\"'])(-{0,2}[A-Za-z_][\w.-]*)\1([^()]*?\bdefault\s*=\s*)" + _QUOTED)
_LOGIN = re.compile(
    r"\b(?:\w*log_?in|authenticate|authorize|set_\w*(?:token|key|password)|with_token|\w*HTTPBasicAuth|\w*HTTPDigestAuth|Fernet|AESGCM|\w*KeyCredential|Secret(?:Str|Bytes)?)\s*\((?=[^)]*[\"'])([^)]*)"
)
_COMMANDS = re.compile(  # options whose name says nothing: of curl, mysql, sshpass, redis-cli, docker
    r"((?:-u|--user|--proxy-user)[\s=]+[^\s:/]+:|\bmysql\w*\b[^|;&]*?\s-p|\bsshpass\s+-p\s*|\bredis-cli\b[^|;&]*?\s-a\s+|\b(?:docker|podman|nerdctl|buildah|skopeo|oras|crane|helm|oc|az)\b[^|;&]{0,80}?\blogin\b[^|;&]{0,200}?\s-p[\s=]*)(?![\s/])([^\s\"']+)"
)
_LITERAL = re.compile(r"(\"\"\"|'''|\"|')((?:\\.|(?!\1)[^\\]|\\\Z)*)(\1|\Z)|#(.*)", re.S)
_IN_QUOTES = re.compile(r"([\"'])(?:\\.|(?!\1)[^\\])*\1")


# What other notations set around a name and its value: each has `name` and `in`, which is hidden where the name is a secret's.
_QUOTE = r"\\*[\"']|%22|&quot;|&#34;|\\+u0022"
_VALUE = r"(?P<in>(?:(?!" + _QUOTE + r"|%26|%7[Dd]|%2[Cc])[^\s&;,<>\"'\\])+)"
_NOTATIONS = (
    # name: |, and indented lines behind it
    re.compile(
        r"(?m)^(?P<indent> *)(?:- )?[\"']?(?P<name>" + _NAME + r")[\"']?\s*:[ ]*[|>][+-]?\d?[ ]*\n(?P<in>(?:(?P=indent) +\S.*(?:\n|\Z)|[ ]*\n)+)"
    ),
    # {"name": "HF_TOKEN", "value": "X"}, the same in YAML, <add key="HF_TOKEN" value="X"/>
    re.compile(
        r"(?i)\b(?:name|key|variable)(?:" + _QUOTE + r")?\s*[:=]\s*(?:" + _QUOTE + r")?(?P<name>" + _NAME + r")(?:" + _QUOTE + r")?[\s,;]+"
        r"(?:" + _QUOTE + r")?value(?:" + _QUOTE + r")?\s*[:=]\s*(?:(?P<q>" + _QUOTE + r")(?P<quoted>(?:(?!(?P=q)).)*)|(?P<in>[^\s,}\"']+))"
    ),
    re.compile(r"<(?P<name>" + _NAME + r")(?:\s[^<>]*)?>(?P<in>[^<>]+)(?=</(?P=name)>)"),
    # %22token%22%3A%22X%22, ?next=/x%3Ftoken%3DX, &quot;token&quot;:&quot;X&quot;
    re.compile(
        r"(?:%(?:3[Ff]|26|7[Bb]|2[Cc]|23)|%22|&quot;|&#34;|\\+u0022)(?P<name>[A-Za-z][\w.-]*)(?:"
        + _QUOTE
        + r")?(?:%3[AaDd]|[:=])(?:%20|\s)*(?:"
        + _QUOTE
        + r")?"
        + _VALUE
    ),
    re.compile(r"\b(?:setenv|ENV|ARG)\s+(?P<name>" + _NAME + r")\s+(?P<in>[^\s=]\S*)"),
    re.compile(r"\$\{oc\.env:(?P<name>" + _NAME + r")\s*,(?P<in>[^{}]+)"),
)


def _hide_notation(match):
    found, part = match.groupdict(), "in" if match["in"] is not None else "quoted"
    kind, value = _kind(match["name"]), match[part]
    if not kind or _is_plain(kind, value):
        return match.group()
    begin, end = (at - match.start() for at in match.span(part))
    hidden = found["indent"] + "  " + MASK + "\n" if "indent" in found else MASK
    return match.group()[:begin] + hidden + match.group()[end:]


def _hide_pair(code, match):
    found, kind, sep = match.groupdict(), _kind(match["name"]), match["sep"]
    if not kind or (found["open"] and not found["close"] and not (set(sep) & set("=:"))):
        return None  # "NAME=VALUE" is a pair, "NAME" alone is none
    if "," in sep and re.match(r"\s*[:=]", match.string[match.end() :]):
        return None  # {"name": "NAME", "value": …}: a name follows
    bare, quoted = found["bare"], found["q"]
    if "," in sep and not (found["close"] and quoted):
        return None  # ("NAME", "VALUE"); a list of names is no pair
    spaced = not sep.strip()
    if spaced and not (match["name"].startswith("-") and not found["close"]):
        return None  # "--pwd x" inside a text; prose has names of secrets, too
    value = bare if bare is not None else found["group"] if found["group"] is not None else found["in"]
    if _is_plain(kind, value) or (bare is not None and (code or (spaced and bare.startswith("-")))):
        return None
    head = match.group()[: match.start("sep") - match.start()] + sep + (found["byte"] or "")
    if quoted:
        return head + quoted + MASK + found["end"]
    if found["group"] is not None:
        return head + value[0] + MASK + (value[-1] if value[-1] in "])}" else "")
    return head + MASK


def _without_named(text, code):
    """What follows the name of a secret. A match that hides nothing is passed over by its name alone: its value may be a name, too."""
    parts, at = [], 0
    while True:
        match = _PAIR.search(text, at)
        if not match:
            return "".join(parts) + text[at:]
        hidden = _hide_pair(code, match)
        end = match.end() if hidden is not None else match.end("name")
        parts += [text[at : match.start()], text[match.start() : end] if hidden is None else hidden]
        at = end


def _hide_default(match):
    hides = _kind(match[2]) and not _is_plain(_kind(match[2]), match["in"])
    return match[1] + match[2] + match[1] + match[3] + match["q"] + MASK + match["end"] if hides else match.group()


def _masked(text, code):
    text = _without_shapes(text)
    text = _HEADER.sub(lambda m: m.group() if _is_plain(2, m["in"]) else m["name"] + m["sep"] + MASK, text)
    text = _DEFAULT.sub(_hide_default, text)
    text = _LOGIN.sub(lambda m: m.group()[: m.start(1) - m.start()] + _IN_QUOTES.sub(r"\1" + MASK + r"\1", m[1]), text)
    for notation in _NOTATIONS:
        text = notation.sub(_hide_notation, text)
    return _without_named(_COMMANDS.sub(r"\1" + MASK, text), code)


def _mask_literal(match):
    return "#" + mask_text(match[4]) if match[4] is not None else match[1] + mask_text(match[2]) + match[3]


def visible(text):
    """Control characters, what turns the direction of a text or is invisible, and lone surrogates as Python spells them; lines stay."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def mask_text(text):
    """Without what looks like a secret wherever it stands: for a message, a variable, a file's text."""
    return _masked(text[:_LONGEST], False)


def mask_code(text):
    """The same for a line of a program: outside of its strings and comments a value without quotes is a name, and no secret."""
    return _LITERAL.sub(_mask_literal, _masked(text[:_LONGEST], True))


def _looks_like_option(argument):
    """What begins with a dash and is no value: a token of base64 may begin with one."""
    return argument.startswith("-") and not (len(argument) >= 12 and re.search("[0-9]", argument) and re.search("[A-Z]", argument))


def mask(arguments):
    """The arguments without secrets: also those that an argument of their own names, `--token X`, `-u USER:X`."""
    masked, named, user, commit = [], 0, False, False
    for argument in map(str, arguments):
        name, equals, value = argument.partition("=")
        bare = re.fullmatch(_NAME, name)
        if named and not _looks_like_option(argument):
            argument = argument if _is_plain(named, argument) else MASK
            named = 0
        elif user and re.match(r"[^:/\s]+:[^/]", argument):
            argument = argument.partition(":")[0] + ":" + MASK
        elif equals and bare and _kind(name):
            argument = argument if _is_plain(_kind(name), value) else name + "=" + MASK
        elif not (commit and _HEX_KEY.fullmatch(argument)):
            named = _kind(name) if argument.startswith("-") and not equals and bare else 0
            argument = mask_text(argument)
        commit = bool(_COMMIT.search(argument))
        user = argument in ("-u", "--user", "--proxy-user", "-U")
        masked.append(argument[:_KEPT])
    return masked
