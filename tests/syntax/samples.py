"""Texts with cursors: ``⟦kind⟧`` stands where the place is asked for and is not in the text."""

from __future__ import annotations

import re

from agentspec.syntax.position import SyntaxPosition, SyntaxTracker

_CURSOR = re.compile(r"⟦([^⟧]*)⟧")


def cursors(marked: str) -> tuple[bytes, list[tuple[int, str]]]:
    """The text, and (byte offset, what is expected there) per cursor."""
    text, wanted, at = b"", [], 0
    for found in _CURSOR.finditer(marked):
        text += marked[at : found.start()].encode()
        at = found.end()
        wanted.append((len(text), found[1]))
    return text + marked[at:].encode(), wanted


def follow(text: bytes) -> list[SyntaxPosition]:
    """The position behind every byte, [len(text) + 1]."""
    tracker = SyntaxTracker(lambda token: bytes((token,)))
    tracker.begin()
    positions = [tracker.position]
    for byte in text:
        tracker.advance(byte)
        positions.append(tracker.position)
    return positions


def check(marked: str) -> None:
    """Each cursor names a kind, or "region language kind" and texts that must be open."""
    text, wanted = cursors(marked)
    assert wanted
    positions = follow(text)
    for offset, expected in wanted:
        at = positions[offset]
        words = expected.split()
        got = [str(at.kind)]
        if len(words) > 1:
            got = [at.region, at.language or "-", str(at.kind)]
            got += [word for word in words[3:] if word in at.open]
        assert got == words, (text[:offset].decode()[-60:], at)


LANGUAGES = {
    "python": '''```python
import⟦keyword⟧ os⟦identifier⟧

⟦statement⟧@cached
class⟦keyword⟧ Store⟦definition⟧(⟦open-bracket⟧Base⟦identifier⟧)⟦close-bracket⟧:⟦separator⟧
⟦block⟧    ⟦indentation⟧"""A⟦string⟧
    docstring."""
⟦statement⟧
    def load⟦definition⟧(self, path⟦parameter⟧: str⟦type⟧) -> None:
⟦block⟧        x =⟦operator⟧ self.name⟦attribute⟧[0⟦literal⟧]  # why⟦comment⟧
⟦statement⟧        return⟦keyword⟧ call(
⟦line-start⟧            r'\\'⟦string⟧,
⟦line-start⟧            None⟦literal⟧,⟦separator⟧ ⟦space⟧
        )
⟦statement⟧```
⟦prose-line⟧''',
    "javascript": """```js
import⟦keyword⟧ x from 'y⟦string⟧'
⟦statement⟧export class Store⟦definition⟧ {
⟦block⟧  #items = [1⟦literal⟧, /a[/]"b⟦string⟧/g];⟦separator⟧
⟦statement⟧  load(path⟦identifier⟧) {⟦open-bracket⟧
⟦block⟧    // why⟦comment⟧
    const text⟦definition⟧ = `a ${path⟦identifier⟧.name⟦attribute⟧} b⟦string⟧` +
⟦line-start⟧      null⟦literal⟧
⟦statement⟧    return a /⟦operator⟧ 2 / b
⟦statement⟧  }⟦close-bracket⟧
⟦block⟧```
""",
    "typescript": """```ts
export interface Item⟦definition⟧ {
⟦block⟧  id: number⟦keyword⟧;
⟦statement⟧}
⟦block⟧type Pair<T⟦identifier⟧> = [T, T];
⟦statement⟧/* why⟦comment⟧ */
function load⟦definition⟧(path⟦parameter⟧: Path⟦type⟧): Item⟦type⟧ {
⟦block⟧  const found = items.find⟦attribute⟧((i) =>⟦operator⟧ i.id ===⟦operator⟧ 1)
⟦statement⟧  foo(
⟦line-start⟧    "a⟦string⟧")
⟦statement⟧}
```
""",
    "go": """```go
package⟦keyword⟧ main⟦identifier⟧

⟦statement⟧func load⟦definition⟧(path string⟦type⟧) error {⟦open-bracket⟧
⟦block⟧\tx :=⟦operator⟧ `raw\\⟦string⟧`
⟦statement⟧\tif err != nil⟦literal⟧ {
⟦block⟧\t\treturn fmt.Errorf⟦attribute⟧("x: %w\\"⟦string⟧", err)
⟦statement⟧\t}
⟦block⟧\tcall(1,
⟦line-start⟧\t\t2)
⟦statement⟧\t// why⟦comment⟧
}
⟦block⟧```
""",
    "rust": """```rust
use⟦keyword⟧ std::fs⟦attribute⟧;
⟦statement⟧/* a /* b */ c⟦comment⟧ */
pub fn load⟦definition⟧<'a⟦literal⟧>(path: &'a str⟦type⟧) -> Option<u32⟦type⟧> {
⟦block⟧    let c = 'x⟦literal⟧';⟦separator⟧
⟦statement⟧    let q = '"'; let r = r#"a"b⟦string⟧"#;
⟦statement⟧    let total⟦identifier⟧ = items
⟦line-start⟧        .iter⟦attribute⟧();
⟦statement⟧    let n = '\\'⟦string⟧'; // why⟦comment⟧
⟦statement⟧}
```
""",
    "c": """```c
#include <stdio.h>
⟦statement⟧static⟦keyword⟧ int load⟦definition⟧(const char *path⟦parameter⟧)
⟦line-start⟧{⟦open-bracket⟧
⟦block⟧    char c = 'x⟦string⟧'; /* why⟦comment⟧ */
⟦statement⟧    size_t n = p->length⟦attribute⟧ + 0x1f⟦literal⟧;
⟦statement⟧    if (n) {
⟦block⟧        return printf("%d\\n⟦string⟧",
⟦line-start⟧            n);
⟦statement⟧    }
⟦block⟧}
```
""",
    "cpp": """```cpp
#define X 1 \\
⟦line-start⟧  + 2
⟦statement⟧template⟦keyword⟧ <typename T⟦type⟧>
class Store⟦definition⟧ : public Base {
⟦block⟧  std::vector⟦attribute⟧<int> rows;
⟦statement⟧  auto s = R"x(a)" b⟦string⟧)x";⟦separator⟧
⟦statement⟧  auto f = [&](int i⟦parameter⟧) { return i; };
⟦statement⟧  // why⟦comment⟧
};
```
""",
    "java": """```java
import⟦keyword⟧ java.util.List⟦attribute⟧;
⟦statement⟧public class Store⟦definition⟧ {
⟦block⟧  private String⟦identifier⟧ text = \"\"\"
      a "b" ⟦string⟧
      \"\"\";
⟦statement⟧  int load(String path⟦parameter⟧) {
⟦block⟧    return items.stream⟦attribute⟧()
⟦line-start⟧        .count(); // why⟦comment⟧
⟦statement⟧  }
}
```
""",
    "bash": """```bash
set -e  # why⟦comment⟧
⟦statement⟧name⟦identifier⟧="a $x # b⟦string⟧"
⟦statement⟧if⟦keyword⟧ [ -f 'a' ]; then⟦keyword⟧
⟦block⟧  grep -v x |⟦operator⟧
⟦line-start⟧    sort
⟦statement⟧fi
⟦block⟧cat > a.py <<'EOF'
⟦heredoc python statement heredoc⟧def f⟦heredoc python definition heredoc⟧():
    pass
EO⟦heredoc bash markup heredoc⟧F
⟦code bash statement⟧python3 - <<-END
⟦heredoc python statement⟧import x
\tEND
⟦code bash statement⟧cat > x.cfg <<< "a⟦code bash string⟧"
echo done⟦keyword⟧
```
""",
    "json": """```json
{⟦code json json-punctuation {⟧
⟦line-start⟧  ⟦indentation⟧"na⟦json-key⟧me"⟦json-key⟧:⟦json-punctuation⟧
    "b": ⟦space⟧"v\\"⟦string⟧w"⟦string⟧,
  "list⟦json-key⟧": [1⟦literal⟧, tr⟦literal⟧ue, "x⟦string⟧"]⟦json-punctuation⟧
}
```
⟦prose - prose-line⟧""",
    "diff": """```diff
diff --git⟦diff - diff-header⟧ a/x.py b/x.py
--- a/x.py⟦diff python diff-header⟧
+++ b/x.py
@@ -1,3 +1,3 @@⟦diff python diff-header⟧ def f():
⟦diff python statement⟧ ⟦diff-marker⟧ ⟦indentation⟧   x = 1⟦literal⟧
-⟦diff-marker⟧    y⟦diff python identifier diff⟧ = '''
-old⟦string⟧
+⟦diff-marker⟧    y = "new⟦string⟧"
     return⟦keyword⟧ y
@@ -9 +9 @@
-a⟦identifier⟧
\\ No newline⟦diff-header⟧ at end of file
```
⟦prose - prose-line⟧""",
}

CALL = r"""I write it.
<tool_call>⟦json json json-punctuation tool_call⟧
{"na⟦json json json-key string⟧me": "write", "arguments": """
CALL += r"""{"path": "x.py⟦json json string string⟧", """
CALL += r""""content":⟦json json json-punctuation {⟧ "⟦call_string python statement call_string⟧"""
CALL += r"""def f(a⟦call_string python parameter⟧):\n⟦call_string python block⟧    """
CALL += r"""return \"h\u00e9\ud83d\ude00⟦call_string python string string⟧\\\"⟦string⟧\" """
CALL += r"""# \\n⟦comment⟧\n⟦statement⟧    x = 'a\/b⟦string⟧'\t# c"⟦json json string {⟧}"""
CALL += r"""⟦json json json-punctuation {⟧}
</tool⟦call - markup⟧_call>⟦prose - prose-line⟧
done⟦prose-word⟧"""

TEXTS = {
    "call": CALL,
    "path after the content": r"""<tool_call>
{"arguments": {"content": "a = 1\ndef f():\n⟦call_string python block⟧", "path": "a.go"}}
</tool_call>
<tool_call>
{"arguments": {"content": "⟦call_string go statement⟧x := `a\\⟦string⟧` + nil⟦literal⟧",
""",
    "command": r"""<tool_call>
{"name": "bash", "arguments": {"command": "ls⟦call_string bash identifier⟧ -l\ncat > a.rs <<'EOF'\n
⟦heredoc rust statement call_string heredoc⟧fn main⟦heredoc rust definition⟧() {}\nEOF\n
⟦call_string bash statement⟧"}}
</tool_call>⟦prose-line⟧""".replace("EOF\\n\n", "EOF\\n").replace("EOF'\\n\n", "EOF'\\n"),
    "patch in a call": r"""<tool_call>
{"name": "patch", "arguments": {"input": "*** Begin Patch\n*** Update File: a.py⟦diff-header⟧\n@@\n
+⟦diff python diff-marker call_string diff⟧def f⟦diff python definition⟧(\n-⟦diff-marker⟧x\n"}}
</tool_call>⟦prose-line⟧""".replace("@@\\n\n", "@@\\n"),
    "parameters in tags": """<tool_call>
<function=write⟦call - markup⟧>
<parameter=path>
a.py⟦call_string - prose-word parameter⟧
</parameter>
<parameter=content>
⟦call_string python statement⟧def f⟦definition⟧(a):
    return "</b>⟦string⟧"
⟦statement⟧</param⟦call - markup⟧eter>
</function>
</tool_call>⟦prose-line⟧""",
    "bare call": """{"name": "f⟦json json string {⟧", "arguments": {}}⟦prose - prose-line⟧ done""",
    "file name before the fence": """`pkg/a.go`:
```
package⟦code go keyword fence⟧ main
```
⟦prose-line⟧""",
    "nested fences": """````markdown
# Ti⟦prose - prose-word fence⟧tle
```python
x = 1⟦code python literal fence⟧
```
word⟦prose - prose-word fence⟧
````
⟦prose - prose-line⟧```text
```python is not the end
⟦code - statement fence⟧```
⟦prose - prose-line⟧""",
    "markdown holds a fence of the same length": """```md
```sh
ls⟦code bash identifier⟧
```
a⟦prose - prose-word fence⟧
```
⟦prose - prose-line⟧""",
    "search and replace": """a/b.py
```python
<<<<<<< SEA⟦search python diff-marker⟧RCH
def f(⟦search python open-bracket fence search (⟧
=======
⟦replace python statement⟧x⟦replace python identifier⟧ = 1 == 2
>>>>>>> REPLACE
⟦code python statement⟧```
""".replace("search python diff-marker", "code python diff-marker"),
    "search and replace without a fence": """src/a.rs
<<<<<<< SEARCH
fn a⟦search rust definition search⟧
=======
fn b⟦replace rust definition replace⟧
>>>>>>> REPLACE
⟦prose - prose-line⟧words""",
    "apply_patch": """*** Begin Patch
*** Add File: a.ts
+const x⟦diff typescript definition patch⟧ = 1
*** Update File: b.py
@@
 def f():
-    return 1⟦diff python literal⟧
*** End Patch
⟦prose - prose-line⟧so""",
    "diff in prose": """--- a/x.c
+++ b/x.c
@@ -1 +1 @@
-int⟦diff c keyword diff⟧ x;
+int y;
And⟦prose - prose-word⟧ so""",
    "a script in quotes": """```sh
python3 -c "
⟦heredoc python statement string heredoc⟧import⟦heredoc python keyword⟧ os
print('a⟦heredoc python string⟧', \\"b⟦heredoc python string⟧\\")
"⟦code bash string⟧ | node -e '⟦heredoc javascript statement⟧let x⟦heredoc javascript definition⟧'
⟦code bash statement⟧git commit -m "$(cat <<'EOF'
Fix⟦heredoc - prose-word string heredoc⟧ it
EOF
⟦code bash string string⟧)"⟦code bash string⟧ && ls⟦code bash identifier⟧
⟦code bash statement⟧```
""",
    "heredoc in a heredoc": """```sh
cat > run.sh <<'A'
cat > x.py <<B
def⟦heredoc python keyword⟧
B
ls⟦heredoc bash identifier⟧
A
ls⟦code bash identifier⟧
```
""",
    "prose": """# T⟦prose-word⟧itle⟦prose-word⟧
⟦prose-line⟧It's⟦prose-word⟧ ⟦prose-space⟧so,⟦prose-punctuation⟧
""",
    "unknown language": """```foo
alpha(⟦code - open-bracket⟧"x⟦string⟧") // c⟦comment⟧
```
""",
    "a language that nobody named": """```
#include <x.h>
⟦code c statement⟧int⟦keyword⟧ x;
```
""",
}
