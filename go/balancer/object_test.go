package balancer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

const sources = "../../bpf"

// The objects that are embedded are of the sources in bpf/. Clang's versions make other bytes of
// the same sources, so what is compared everywhere is the sources' hash, as objects/build.sh wrote
// it down; and the bytes where the compiler is the one that made them.
func TestTheObjectsAreOfTheSources(t *testing.T) {
	if _, err := os.Stat(sources); err != nil {
		t.Skip("bpf/ is not here: this is a copy of the module alone")
	}
	const due = "run go/balancer/objects/build.sh, and look at what changed in layout.go"
	lines := strings.Fields(read(t, "objects/SOURCES"))
	if len(lines) < 20 {
		t.Fatalf("objects/SOURCES names %d files", len(lines)/2)
	}
	for i := 0; i < len(lines); i += 2 {
		sum := sha256.Sum256([]byte(read(t, filepath.Join(sources, lines[i+1]))))
		if hex.EncodeToString(sum[:]) != lines[i] {
			t.Errorf("bpf/%s is not what the objects were made of: %s", lines[i+1], due)
		}
	}
	version, err := exec.Command("clang", "--version").Output()
	first, _, _ := strings.Cut(string(version), "\n")
	if err != nil || first != strings.TrimSpace(read(t, "objects/COMPILER")) {
		t.Logf("the bytes are not compared: they were made by %s, here is %q", read(t,
			"objects/COMPILER"), first)
		return
	}
	if _, err := exec.LookPath("llvm-strip"); err != nil {
		t.Log("the bytes are not compared: there is no llvm-strip here")
		return
	}
	made := t.TempDir()
	if out, err := exec.Command("objects/build.sh", made).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"balancer.bpf.o", "balancer.tc.o", "SOURCES"} {
		if read(t, filepath.Join(made, name)) != read(t, filepath.Join("objects", name)) {
			t.Errorf("objects/%s is another one: %s", name, due)
		}
	}
}

// Each structure here is, field by field, what the object says of its own (BTF): name, place, size.
func TestLayoutIsTheObjects(t *testing.T) {
	structs := map[string]any{
		"settings":        settings{},
		"link":            linkEntry{},
		"vip":             vipEntry{},
		"port":            portEntry{},
		"server":          serverEntry{},
		"maglev":          maglevEntry{},
		"bucket":          bucket{},
		"flow_name":       flowName{},
		"server_counters": serverCounters{},
		"counters":        reasonCounters{},
	}
	for _, object := range [][]byte{objectXDP, objectTC} {
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		for name, ours := range structs {
			var theirs *btf.Struct
			if err := spec.Types.TypeByName(name, &theirs); err != nil {
				t.Errorf("struct %s: %v", name, err)
				continue
			}
			compareStructs(t, theirs, reflect.TypeOf(ours))
		}
	}
	if _, err := os.Stat(sources); err != nil {
		t.Skip("bpf/ is not here: this is a copy of the module alone")
	}
	// Names of numbers are not in the object.
	header := read(t, sources+"/balancer.h")
	_, body, _ := strings.Cut(header, "enum reason {\n")
	body, _, _ = strings.Cut(body, "};")
	var named []string
	for _, line := range regexp.MustCompile(`(?m)^\tREASON_(\w+),`).FindAllStringSubmatch(body,
		-1) {
		named = append(named, strings.ToLower(line[1]))
	}
	if at := slices.Index(named, "ttl"); at >= 0 {
		named[at] = "expired"
	}
	if !slices.Equal(named, reasonNames) {
		t.Errorf("enum reason is %v, here %v", named, reasonNames)
	}
	for name, here := range map[string]string{
		"MAGLEV_SIZE": "16384", "LINKS": "256", "PROBES": "8", "BUCKET_SLOTS": "16",
		"TICK_SHIFT": "33", "TICK_MASK": "0x3fff",
	} {
		if !regexp.MustCompile(`(?m)^#define ` + name + `\s+` + here + `\b`).MatchString(header) {
			t.Errorf("%s is not %s", name, here)
		}
	}
}

func compareStructs(t *testing.T, theirs *btf.Struct, ours reflect.Type) {
	t.Helper()
	if uintptr(theirs.Size) != ours.Size() || len(theirs.Members) != ours.NumField() {
		t.Errorf("struct %s has %d bytes and %d fields, here %d and %d",
			theirs.Name, theirs.Size, len(theirs.Members), ours.Size(), ours.NumField())
		return
	}
	plain := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
	for i, member := range theirs.Members {
		field := ours.Field(i)
		size, err := btf.Sizeof(member.Type)
		if err != nil {
			t.Fatal(err)
		}
		if plain(member.Name) != strings.ToLower(field.Name) ||
			uintptr(member.Offset.Bytes()) != field.Offset || uintptr(size) != field.Type.Size() {
			t.Errorf("struct %s: %s at %d, %d bytes; here %s at %d, %d bytes", theirs.Name,
				member.Name, member.Offset.Bytes(), size, field.Name, field.Offset, field.Type.Size())
		}
	}
}

// Every map that the Rust library fills is there, with the shape that is filled in here.
func TestMapsAreTheObjects(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(objectXDP))
	if err != nil {
		t.Fatal(err)
	}
	shapes := map[string]any{
		"half": uint32(0), "links": linkEntry{}, "vips": vipEntry{}, "ports": portEntry{},
		"maglevs": maglevEntry{}, "servers": serverEntry{}, "flows": bucket{}, "flow_names": flowName{},
		"server_counters": serverCounters{}, "counters": reasonCounters{},
		// The program's own.
		"fragments": nil, "chain": nil, "icmp_rate": nil,
	}
	for name, one := range spec.Maps {
		shape, known := shapes[name]
		if strings.HasPrefix(name, ".rodata") {
			continue
		}
		if !known {
			t.Errorf("map %s is new", name)
		} else if shape != nil && uintptr(one.ValueSize) != reflect.TypeOf(shape).Size() {
			t.Errorf("map %s has values of %d bytes, here %d", name, one.ValueSize,
				reflect.TypeOf(shape).Size())
		}
		delete(shapes, name)
	}
	for name := range shapes {
		t.Errorf("there is no map %s", name)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
