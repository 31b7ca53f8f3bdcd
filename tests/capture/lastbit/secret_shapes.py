"""Shapes of secrets, and of what looks like one and is none, for test_secret_text.py.

«…» marks the secret, which must be gone; what stands around it stays, but for what is marked ‹…›, which may go with it. Tokens of services are written as patterns, so that no file of
this tree looks as if it leaked one: <A20> stands for 20 letters and digits, <U16> for capitals and digits, <H40> for hexadecimal digits, <D9> for digits; ¶ for the end of a line.
"""

# Arguments of a program, one to a blank; ~ is a blank inside of one.
ARGUMENTS = """
--pwd «x»
--pwd=«x»
--password «hunter2»
--password=«hunter2»
--password=«a=b=c»
--password=«with~blanks~in~it»
--password «1234»
-password «hunter2»
--passwd «hunter2»
--passphrase «correct~horse»
--seed-phrase «correct~horse~battery»
--seed_phrase=«correct~horse»
--recovery-phrase «correct~horse»
--recovery-words=«correct~horse»
--backup-code «12345678»
--db-password=«abc»
--db_pass=«abc»
--smtp-pass «abc»
--dbPassword=«abc»
--token «abc»
--token=«abc»
--token «0123456789»
--token «-A1<A20>»
--hub_token «abc» --lr 1
--hub-token=«abc»
--hf_token «abc»
--use_auth_token «abc»
--access-token=«abc»
--accessToken=«abc»
--refresh_token «abc»
--bearer «abc»
--jwt=«abc»
--pat «abc»
--api-key «abc»
--api_key=«abc»
--apikey «abc»
--apiKey=«abc»
--wandb-key «abc»
--wandb_api_key=«abc»
--openai.api_key=«abc»
--secret «abc»
--secret-key=«abc»
--client_secret «abc»
--aws-secret-access-key=«abc»
--AWS_SECRET_ACCESS_KEY=«abc»
--private-key «abc»
--encryption_key=«abc»
--signing-key «abc»
--service-account-key «abc»
--license-key=«abc»
--storage-key «abc»
--credentials «abc»
--credential=«abc»
--cookie «session=abc»
--auth «me:abc»
--vault-secret-id «abc»
--otp «123456»
--secret_value=«abc»
--password_new=«abc»
--password2 «abc»
--dsn «abc»
trainer.api_key=«abc»
+wandb.api_key=«abc»
++trainer.logger.token=«abc»
db.password=«abc»
db/auth.password=«abc»
db={user:me,password:«abc»}
hub={token:«abc»,private:true}
logger@trainer.secret=«abc»
HF_TOKEN=«abc»
WANDB_API_KEY=«abc»
AWS_SESSION_TOKEN=«abc»
env.HF_TOKEN=«abc»
-e HF_TOKEN=«abc»
--env=HF_TOKEN=«abc»
--header Authorization:~Bearer~«abc.def-ghi»
-H Authorization:~Basic~«ZGVmYXVsdA==»
-H X-Api-Key:~«abc»
-H Private-Token:~«abc»
-H Cookie:~«session=abc;~id=2»
-u me:«abc»
--user me:«abc»
--proxy-user me:«abc»
--config {"token":~"«abc»",~"lr":~0.1}
--config {"api_key":"«abc»"}
--config {'password':~'«abc»'}
--config {"hub":{"auth":{"password":"«abc»"}}}
--config {"passwords":["«abc»","«def»"]}
--config {\\"token\\":\\"«abc»\\"}
--config {"password":"«a\\"b»","lr":1}
--yaml password:~«abc»
--args=--token~«abc»~--lr~1
--cmd export~DB_PASSWORD=«abc»;~./run
--url https://me:«abc»@host/x
--url=https://«abc»@host/x
--url postgres://me:«p@ss»@host:5432/db
--url redis://:«abc»@host:6379/0
--url mongodb+srv://me:«abc»@cluster.example.net
--url ftp://me:«abc»@host
--db me:«hunter2»@localhost:5432/db
--url https://host/x?token=«abc»&lr=1
--url https://host/x?lr=1&api_key=«abc»
--url https://host/x?access_token=«abc»#top
--url https://bucket.example.com/a?X-Amz-Signature=«<H40>abcdef»
--url https://bucket.example.com/a?X-Amz-Security-Token=«<A20>»&x=1
--url https://blob.example.net/a?sv=2022&sig=«<A20>%3D»
--hook https://hooks.slack.com/services/«T<U16>/B<U16>/<A20>»
--hook https://discord.com/api/webhooks/«123456789/<A20>»
"""

# Tokens by their own shape: each alone, in a sentence, and in a line of code.
TOKENS = """
hf_<A34>
hf_abcdefghijkl
api_org_<A34>
sk-<A48>
sk-proj-<A20>
sk-ant-api03-<A20>
sk-or-v1-<H40>
sk_live_<A24>
rk_live_<A24>
whsec_<A32>
ghp_<A36>
gho_<A36>
ghs_<A36>
github_pat_<A22>_<A20>
glpat-<A20>
xoxb-<D9>-<A24>
xoxp-<D9>-<A24>
xapp-1-<U16>-<H40>
AKIA<U16>
ASIA<U16>
AIza<A35>
ya29.<A40>
GOCSPX-<A28>
eyJ<A20>.<A40>.<A20>
eyJ<A40>
<H40>
wandb_v1_<A40>
local-<H40>
npm_<A36>
pypi-<A40>
dckr_pat_<A27>
dop_v1_<H40>
dapi<H32>
SG.<A22>.<A43>
key-<H32>
gsk_<A40>
r8_<A37>
xai-<A40>
nvapi-<A40>
pplx-<A40>
lsv2_pt_<H32>
hvs.<A24>
AGE-SECRET-KEY-1<U32>
glsa_<A32>
shpat_<H32>
figd_<A40>
ntn_<A40>
<D9>:AA<A33>
sess-<A40>
EAA<U16><A20>
tskey-auth-<A20>
CLOJARS_<H40>
rpa_<A40>
tvly-<A32>
"""

# Texts as they are: variables, messages, files.
TEXTS = """
Authorization: Bearer «abc.def-ghi»
authorization: bearer «abc»
Authorization: token «abc»
proxy-authorization: Basic «ZGVmYXVsdA==»
"Authorization": "Bearer «abc»"
{'Authorization': 'Bearer «abc»', 'Accept': '*/*'}
X-Auth-Token: «abc»
token: !!str «abc»
password: !!binary "«YWJj»"
x-api-key: «abc»
x-goog-api-key: «abc»
Set-Cookie: «sid=abc; Path=/»
curl -H 'Authorization: Bearer «abc»' https://host
curl -u me:«abc» https://host
curl --user me:«abc» https://host
mysql -h host -u me -p«abc» db
sshpass -p «abc» ssh host
redis-cli -h host -a «abc» ping
401 Client Error: Unauthorized for url: https://host/api?token=«abc»
could not connect to postgres://‹me:›«abc»@host:5432/db
fatal: unable to access 'https://«abc»@github.com/x/y.git/': 403
Invalid password: «abc»
password = «abc»
password="«abc»"
password => '«abc»'
"passwd" : "«abc»"
export WANDB_API_KEY=«abc»
set HF_TOKEN='«abc»' && run
AccountName=me;AccountKey=«abc»;EndpointSuffix=x
Server=host;User Id=me;Password=«abc»;
sent with Bearer «<A20>» to host
{"wandb": {"api_key": "«abc»", "project": "x"}, "lr": 0.1}
{"env": {"HF_TOKEN": "«abc»", "OMP_NUM_THREADS": "1"}}
["train.py", "--token", "«abc»", "--lr", "1"]
[("Authorization", "Bearer «abc»")]
{\\"hub\\": {\\"token\\": \\"«abc»\\", \\"private\\": true}}
--tracker.password=«abc» --lr 1
python train.py --hub-token «abc» --lr 1
token: «abcdefgh»
-----BEGIN PRIVATE KEY-----«MIIEvQIBADANBg»‹-----END PRIVATE KEY-----›
-----BEGIN RSA PRIVATE KEY-----\\n«MIIEpAIBAAKCAQ»\\n‹-----END RSA PRIVATE KEY-----›
-----BEGIN OPENSSH PRIVATE KEY-----«b3BlbnNzaC1rZXk»
-----BEGIN PGP PRIVATE KEY BLOCK-----«lQOYBF»
password: |¶  «hunter2secret»¶lr: 1
hub:¶  token: >-¶    «abcsecret»¶  private: true
- name: WANDB_API_KEY¶  value: «abcsecret»¶- name: LR¶  value: 0.1
{"name": "WANDB_API_KEY", "value": "«abcsecret»"}
[{"name": "LR", "value": "0.1"}, {"key": "HF_TOKEN", "value": "«abcsecret»"}]
<add key="Password" value="«abcsecret»"/>
<settings><password>«abcsecret»</password><lr>0.1</lr></settings>
machine github.com login me password «abcsecret»
machine host¶  login me¶  password «abcsecret»¶machine other
Authorization: ‹Digest ›«username="me", response="6629fae49393a05397450978507c4ef1"»
WWW: Digest «username="me", realm="x", nonce="n", response="6629fae4939"»
https://host/callback?code=«abcsecretabcsecret»&state=1
https://host/x?next=https%3A%2F%2Fhost%2Fx%3Ftoken%3D«abcsecret»%26lr%3D1
%7B%22token%22%3A%22«abcsecret»%22%2C%22lr%22%3A1%7D
{&quot;token&quot;:&quot;«abcsecret»&quot;,&quot;lr&quot;:1}
{\\u0022token\\u0022:\\u0022«abcsecret»\\u0022}
https://‹me:›«p/ss»@host/x
jdbc:oracle:thin:me/«abcsecret»@host:1521/x
PGPASSWORD=«abcsecret» psql -h host
SSHPASS=«abcsecret» sshpass -e ssh host
docker login -u me -p «abcsecret» host
set "HF_TOKEN=«abcsecret»"
setenv HF_TOKEN «abcsecret»
ENV HF_TOKEN «abcsecret»
'api_key="«abcsecret»"' trainer.lr=1
logger.token=‹${oc.env:HF_TOKEN,›«abcsecret»}
Config(‹api_key=SecretStr›('«abcsecret»'), lr=1)
---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----¶«P2/56wAAAi»¶‹---- END SSH2 ENCRYPTED PRIVATE KEY ----›
PuTTY-User-Key-File-2: ssh-rsa¶Private-Lines: ‹8›¶«BEGINAAgQCabcdefg»
"private_key": "‹-----BEGIN PRIVATE KEY-----›«MIIEvQIBADANBg»‹-----END PRIVATE KEY-----\\n›"
"""

CODE = """
login("«abc»")
wandb.login(key="«abc»")
huggingface_hub.login(token='«abc»')
client = OpenAI(api_key="«abc»")
api = HfApi(token=f"«abc»")
model = AutoModel.from_pretrained(name, token="«abc»", revision="main")
os.environ["HF_TOKEN"] = "«abc»"
os.environ.setdefault("WANDB_API_KEY", "«abc»")
os.putenv("AWS_SECRET_ACCESS_KEY", "«abc»")
parser.add_argument("--token", type=str, default="«abc»")
password = "«abc»"
password: str = "«abc»"
def connect(host, password="«a,b»", port=5432):
config = {"password": "«abc»", "lr": 0.1}
config = dict(api_key='«abc»', lr=0.1)
self.secret = b"«abc»"
r = requests.get(url, headers={"Authorization": "Bearer «abc»"})
r = requests.get(url, auth=("me", "«abc»"))
r = requests.get("https://host/x?token=«abc»&lr=1")
db = connect("postgres://me:«abc»@host/db")
if token == "«abc»":
run("python train.py --hub-token «abc» --lr 1")
loss = model(x)  # password: «abc»
cipher = Fernet(b"«abc»")
"""

# What must be read as it was: each as an argument, as a text and as code.
HARMLESS = """
--error-code 7
--seed 1234 --lang-code de
--stop-words the,a
--lr=1e-3
lr=0.0003
{"name":"tokenizer","value":"bpe"}
<add-key="seed"-value="3"/>
<title>tokens</title>
https://host:8080/a/b@c
https://medium.com/@me/x
https://host/x?barcode=1234567890&lr=1
?decode=abcdefghijk&x=1
%7B%22lr%22%3A%220.1%22%7D
${oc.env:LR,0.1}
sha256-Digest
optimizer.lr=3e-4
trainer.max_epochs=10
+experiment=llama
--model=meta-llama/Llama-3.1-8B-Instruct
Qwen/Qwen2.5-0.5B-Instruct
sentence-transformers/all-MiniLM-L6-v2
--model_name_or_path=/data/models/llama-7b/checkpoint-500
/home/me/hf_transformers/train_hf_model.py
tests/programs/hf_architectures.py
samples/hybrid_lm.py
--revision=<H40>
commit <H40>
git_commit=<H40>
/cache/hub/models--gpt2/snapshots/<H40>/config.json
model@<H40>
sha256:<H64>
<H64>
--run-id=<H8>-<H4>-<H4>-<H4>-<H12>
<H7>
checkpoint-0012345678
--max-tokens=512
--max_new_tokens=128
num_tokens=5
tokens_per_batch=4096
--tokenizer=gpt2
tokenizer.json
token_type_ids
--pad-token-id=3
pad_token="<pad>"
eos_token="</s>"
--image-token=<image>
token_embedding=wte
--token-dropout=0.1
use_auth_token=True
--token=False
--author=me
authors=Ada
--key=value
key_dim=64
num_key_value_heads=8
monkey=1
keyboard=us
passes=3
--second_pass=1
forward_pass=2
compass=north
passthrough=yes
--password-file=/run/secret
secret_name=db
token_file=/run/x
auth_type=oidc
auth_timeout=30
signature_size=3
tcp://10.0.0.1:29500
10.0.0.1:29500
http://localhost:8080/v1?lr=1&seed=2
s3://bucket/data/part-0001.parquet
hf://datasets/org/name@main/train.csv
git@github.com:org/repo.git
ssh://git@github.com/org/repo.git
file:///data/x.bin
me@example.org
--seed=1234567890123
2024-05-01T12:00:00Z
PCI_BUS_ID
GPU-<H8>-<H4>-<H4>-<H4>-<H12>
expandable_segments:True,max_split_size_mb:128
--xla_gpu_autotune_level=0
liblastbit_capture.so
layers.11.attention.k_proj
task-sk-small
sk-learn
hf_models
key-value
basic training
bearer of news
dataset=wikitext-103-raw-v1
--dtype=bfloat16
torch==2.6.0+cpu
aten::_scaled_dot_product_flash_attention
-----BEGIN CERTIFICATE-----
"""

HARMLESS_CODE = """
token = self.embed(x)
tokens = tokenizer(text, return_tensors="pt")
q, k, v = self.query(x), self.key(x), self.value(x)
key = self.key_cache[layer]
next_token = logits.argmax(-1)
token: Tensor = self.norm(x)
password = getpass.getpass()
api_key = os.environ["API_KEY"]
api_key = os.getenv("API_KEY")
headers = {"Authorization": f"Bearer {token}"}
loss = F.cross_entropy(logits.view(-1, n), tokens.view(-1))
secret = load(args.secret_file)
auth_loss = (a * b).sum()
x = x[:, token_ids] + self.pos(token_type)
h = h * mask.view(b, 1, 1, -1)  # tokens that are padding count 0
def forward(self, tokens, token=None, key=None):
y = torch.addmm(bias, x, w.t(), beta=1, alpha=1)
special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
"""
