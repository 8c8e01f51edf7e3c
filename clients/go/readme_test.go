package butterfly

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// What the README shows is the body of Example, which is compiled, and the Go version it names is
// the one of go.mod.
func TestTheREADMEIsTrue(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		ok(t, err)
		return string(text)
	}
	readme := read("README.md")
	shown := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(readme)
	if shown == nil {
		t.Fatal("README.md shows no Go")
	}
	_, body, _ := strings.Cut(read("example_test.go"), "func Example() {\n")
	body = strings.TrimSuffix(body, "}\n")
	if shown[1] != strings.ReplaceAll(strings.TrimPrefix(body, "\t"), "\n\t", "\n") {
		t.Fatalf("README.md and example_test.go differ:\n%s\n%s", shown[1], body)
	}
	oldest := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read("go.mod"))
	if !strings.Contains(readme, "needs Go "+oldest[1]+" ") {
		t.Fatalf("README.md does not say that it needs Go %s", oldest[1])
	}
}

// What docs/balancer.md calls "the same" as in xvs's library is a method of Client by that name.
func TestNamesOfTheIPVSLibrariesAreHere(t *testing.T) {
	page, err := os.ReadFile("../../docs/balancer.md")
	if os.IsNotExist(err) {
		t.Skip("the page is not here: this is a copy of the module alone")
	}
	ok(t, err)
	client := reflect.TypeOf((*Client)(nil)).Elem()
	names := 0
	for _, row := range strings.Split(string(page), "\n") {
		cells := strings.Split(row, " | ")
		if len(cells) != 2 || !strings.HasPrefix(cells[1], "the same") {
			continue
		}
		for _, name := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(cells[0], -1) {
			names++
			if _, there := client.MethodByName(name[1]); !there {
				t.Errorf("Client has no %s", name[1])
			}
		}
	}
	if names < 15 {
		t.Fatalf("the page names %d methods", names)
	}
}
